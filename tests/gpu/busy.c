/*
 * busy.c - gpu-bench while another process uses the GPU: 5 ms kernels on the whole of it, back to back.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

struct rate {
	double kernels, us;
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
static struct rate run_kernels(int sock, CUstream s, double us)
{
	CUevent e[2] = { new_event(CU_EVENT_BLOCKING_SYNC), new_event(CU_EVENT_BLOCKING_SYNC) };
	struct rate rate = { 0, now_us() };
	unsigned k = 0;

	for (; k == 0 || !told_to_stop(sock); k++) {
		KERNEL(kernel_spin(us, 0, 1, s));
		CU(EventRecord(e[k % 2], s));
		if (k)
			CU(EventSynchronize(e[(k - 1) % 2]));
	}
	CU(StreamSynchronize(s));
	rate.kernels = k;
	rate.us = now_us() - rate.us;
	CU(EventDestroy(e[0]));
	CU(EventDestroy(e[1]));
	return rate;
}

static void busy_main(int sock)
{
	CUstream s;
	char go;

	hear(sock, &go, 1);
	gpu_start();
	s = new_stream();
	tell(sock, &go, 1);
	for (;;) {
		struct rate rate;
		double us;

		hear(sock, &us, sizeof(us));
		rate = run_kernels(sock, s, us);
		tell(sock, &rate, sizeof(rate));
	}
}

static void start(struct other *o)
{
	double us = quick ? 500 : 5000;

	tell(o->sock, &us, sizeof(us));
	usleep(quick ? 5000 : 100000);
}

/* Kernels a second. */
static double stop(struct other *o)
{
	struct rate rate;
	char byte = 0;

	tell(o->sock, &byte, 1);
	hear(o->sock, &rate, sizeof(rate));
	return rate.kernels / rate.us * 1e6;
}

static void beside(struct other *o, double alone, const char *what, void (*measure)(bool few))
{
	double with_us;

	start(o);
	measure(true);
	with_us = stop(o);
	row_begin("the other process's kernels, beside \"%s\"", what);
	row_number("kernels_per_s", with_us);
	row_number("alone_per_s", alone);
	row_number("slowdown", alone / with_us);
	row_end();
}

static const char *const left_out[] = {
	"operations of other sizes",
	"copies from another GPU",
	"the latency of pulling, arming, copying within and zeroing",
	"kernel against copy engine",
	"slabs",
	"allocating chunks that are not exported",
};

void section_busy(void)
{
	struct other o;
	double alone;
	char go = 0;

	if (on_sim)
		does_not_apply("the simulated device runs no kernels");
	o = other_start(busy_main);
	bench_start();
	tell(o.sock, &go, 1);
	hear(o.sock, &go, 1);
	start(&o);
	usleep(quick ? 20000 : 1000000);
	alone = stop(&o);
	rows_label("beside", quick ? "0.5 ms kernels of another process" : "5 ms kernels of another process");
	beside(&o, alone, "latency", measure_latency);
	beside(&o, alone, "kinds", measure_kinds);
	beside(&o, alone, "detect", measure_detect);
	beside(&o, alone, "both_ways", measure_both_ways);
	beside(&o, alone, "memory", measure_memory);
	other_end(&o);
	for (unsigned i = 0; i < ARRAY_LEN(left_out); i++)
		row_not_run(left_out[i], "left out beside another process: there is no time for all");
}
