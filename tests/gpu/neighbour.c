/*
 * neighbour.c - see neighbour.h.
 */
#include "neighbour.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu.h"

/* ---- the neighbour ---- */

struct kernels {
	double n, us;
};

static bool told_to_stop(int sock)
{
	char byte;
	ssize_t n = recv(sock, &byte, 1, MSG_DONTWAIT);

	if (n == 0)
		_exit(0);
	return n == 1;
}

/* Two kernels are queued at any time, so that the GPU has no pause. */
static struct kernels run_kernels(int sock, CUstream s, double us)
{
	CUevent e[2] = { new_event(CU_EVENT_BLOCKING_SYNC), new_event(CU_EVENT_BLOCKING_SYNC) };
	struct kernels ran = { 0, now_us() };
	unsigned k = 0;

	for (; k == 0 || !told_to_stop(sock); k++) {
		KERNEL(kernel_spin(us, 0, 1, s));
		CU(EventRecord(e[k % 2], s));
		if (k)
			CU(EventSynchronize(e[(k - 1) % 2]));
	}
	CU(StreamSynchronize(s));
	ran.n = k;
	ran.us = now_us() - ran.us;
	CU(EventDestroy(e[0]));
	CU(EventDestroy(e[1]));
	return ran;
}

static void neighbour_main(int sock)
{
	CUstream s;
	char go;

	hear(sock, &go, 1);
	gpu_start();
	s = new_stream();
	tell(sock, &go, 1);
	for (;;) {
		struct kernels ran;
		double us;

		hear(sock, &us, sizeof(us));
		ran = run_kernels(sock, s, us);
		tell(sock, &ran, sizeof(ran));
	}
}

/* ---- our side ---- */

static struct {
	struct other other;
	int of; /* the process that has it; 0: there is none */
	bool runs;
	struct kernels alone, beside;
} neighbour;

static bool is_ours(void)
{
	return neighbour.of == getpid();
}

static void start(void)
{
	double us = quick ? 500 : 5000;

	tell(neighbour.other.sock, &us, sizeof(us));
	neighbour.runs = true;
	usleep(quick ? 5000 : 50000);
}

static void stop(struct kernels *sum)
{
	struct kernels ran;
	char byte = 0;

	tell(neighbour.other.sock, &byte, 1);
	hear(neighbour.other.sock, &ran, sizeof(ran));
	neighbour.runs = false;
	sum->n += ran.n;
	sum->us += ran.us;
}

void neighbour_fork(void)
{
	neighbour.other = other_start(neighbour_main);
	neighbour.of = getpid();
}

void neighbour_begin(void)
{
	char go = 0;

	if (!is_ours())
		return;
	tell(neighbour.other.sock, &go, 1);
	hear(neighbour.other.sock, &go, 1);
	start();
	usleep(quick ? 20000 : 500000);
	stop(&neighbour.alone);
	rows_label("beside", quick ? "0.5 ms kernels of another process" : "5 ms kernels of another process");
	start();
}

void neighbour_pause(void)
{
	if (is_ours() && neighbour.runs)
		stop(&neighbour.beside);
}

void neighbour_resume(void)
{
	if (is_ours() && !neighbour.runs)
		start();
}

void neighbour_end(void)
{
	double alone, ours;

	if (!is_ours() || !neighbour.alone.n)
		return;
	neighbour_pause();
	alone = neighbour.alone.n / neighbour.alone.us * 1e6;
	ours = neighbour.beside.n / neighbour.beside.us * 1e6;
	row_begin("the other process's kernels");
	row_number("kernels_per_s", ours);
	row_number("alone_per_s", alone);
	row_number("slowdown", alone / ours);
	row_end();
}
