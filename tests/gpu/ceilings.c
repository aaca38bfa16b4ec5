/*
 * ceilings.c - what a machine with a GPU can do, by bare calls of the driver.
 *
 *	gpu-ceilings [--beside] --list			see sections.h
 *	gpu-ceilings [--quick] [--beside] SECTION
 *	gpu-ceilings --gpus				how many there are
 *	gpu-ceilings --machine				a row about GPU 0 and the driver
 *	gpu-ceilings --hold				keeps a context until standard input ends
 */
#include "ceilings.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"

/* ---- host memory ---- */

/* As the daemon registers slabs. False: refused, which a row says. */
static bool registered(void *p, size_t bytes, const char *what)
{
	CUresult r = cu.MemHostRegister(p, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);

	if (r)
		row_not_run(what, "cuMemHostRegister of %zu bytes: error %d (ulimit -l does not count)", bytes,
			    (int)r);
	return !r;
}

static void registration_row(size_t bytes, bool huge, unsigned parts)
{
	const char *what = parts > 1 ? "registering host memory, by slabs of 2 MiB" : "registering host memory";
	struct samples in = { .n = 0 }, out = { .n = 0 };
	size_t part = bytes / parts;
	char *p = mmap(NULL, bytes + CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;

	if (p == MAP_FAILED)
		die("no memory");
	at = (char *)(((uintptr_t)p + CHUNK - 1) & ~(CHUNK - 1));
	madvise(at, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	memset(at, 1, bytes);
	for (struct repeat r = repeat(7); again(&r);) {
		double t0 = now_us(), t1;

		for (unsigned i = 0; i < parts; i++)
			if (!registered(at + i * part, part, what))
				return;
		t1 = now_us();
		took(&r, &in, (t1 - t0) / parts);
		for (unsigned i = 0; i < parts; i++)
			CU(MemHostUnregister(at + i * part));
		took(&r, &out, (now_us() - t1) / parts);
	}
	row_begin("%s", what);
	row_number("bytes", (double)part);
	row_number("of_bytes", (double)bytes);
	row_bool("huge_pages", huge);
	row_samples("register_us", &in);
	row_samples("unregister_us", &out);
	row_end();
	munmap(p, bytes + CHUNK);
}

static void section_registration(void)
{
	static const size_t sizes[] = { 2 * MIB, 32 * MIB, 512 * MIB };

	gpu_start();
	for (unsigned i = 0; i < (quick ? 2 : 3); i++)
		for (unsigned huge = 0; huge < 2; huge++) {
			registration_row(sizes[i], huge, 1);
			if (i)
				registration_row(sizes[i], huge, (unsigned)(sizes[i] / CHUNK));
		}
}

/* ---- events between processes ---- */

static void exchange(int sock, CUevent mine, CUevent *theirs)
{
	CUipcEventHandle handle;

	CU(IpcGetEventHandle(&handle, mine));
	tell(sock, &handle, sizeof(handle));
	hear(sock, &handle, sizeof(handle));
	CU(IpcOpenEventHandle(theirs, handle));
}

/* Waits for our event on its stream, records its own, says so. */
static void echo(int sock)
{
	CUevent mine, theirs;
	CUstream s;
	char byte;

	hear(sock, &byte, 1);
	gpu_start();
	s = new_stream();
	mine = new_event(CU_EVENT_INTERPROCESS);
	exchange(sock, mine, &theirs);
	for (;;) {
		hear(sock, &byte, 1);
		CU(StreamWaitEvent(s, theirs, 0));
		CU(EventRecord(mine, s));
		tell(sock, &byte, 1);
	}
}

static void section_events(void)
{
	struct other o = other_start(echo);
	struct samples there = { .n = 0 }, words = { .n = 0 };
	CUevent mine, theirs;
	CUstream s;
	char byte = 0;

	gpu_start();
	tell(o.sock, &byte, 1);
	s = new_stream();
	mine = new_event(CU_EVENT_INTERPROCESS);
	exchange(o.sock, mine, &theirs);
	for (struct repeat r = repeat(60); again(&r);) {
		double t0 = now_us(), t1;

		CU(EventRecord(mine, s));
		t1 = now_us();
		tell(o.sock, &byte, 1);
		hear(o.sock, &byte, 1);
		took(&r, &words, now_us() - t1);
		CU(StreamWaitEvent(s, theirs, 0));
		CU(StreamSynchronize(s));
		took(&r, &there, now_us() - t0);
	}
	row_begin("event to another process's stream and back");
	row_samples("us", &there);
	row_number("of_that_messages_us", median(&words));
	row_end();
	other_end(&o);
}

/* ---- launches ---- */

static void put_us(const char *what, struct samples *us)
{
	row_begin("%s", what);
	row_samples("us", us);
	row_end();
}

/* Microseconds of @call, in a row. */
#define LATENCY(what, call)                                      \
	do {                                                     \
		struct samples us_ = { .n = 0 };                 \
		for (struct repeat r_ = repeat(200); again(&r_);) { \
			double t0_ = now_us();                   \
			call;                                    \
			took(&r_, &us_, now_us() - t0_);         \
			CU(StreamSynchronize(s));                \
		}                                                \
		put_us(what, &us_);                              \
	} while (0)

static void spin_for(CUevent e)
{
	CUresult r;

	while ((r = cu.EventQuery(e)) == CUDA_ERROR_NOT_READY)
		;
	check_cu(r, "cuEventQuery");
}

static void section_launches(void)
{
	CUdeviceptr dev;
	CUevent blocking, spinning;
	CUstream s;
	void *host;

	gpu_start();
	s = new_stream();
	blocking = new_event(CU_EVENT_BLOCKING_SYNC);
	spinning = new_event(0);
	dev = new_memory(4096);
	host = new_pinned(4096);
	LATENCY("launching an empty kernel, the call", KERNEL(kernel_empty(s)));
	LATENCY("empty kernel, until cuStreamSynchronize returns", {
		KERNEL(kernel_empty(s));
		CU(StreamSynchronize(s));
	});
	LATENCY("empty kernel, until a blocking event's cuEventSynchronize returns", {
		KERNEL(kernel_empty(s));
		CU(EventRecord(blocking, s));
		CU(EventSynchronize(blocking));
	});
	LATENCY("empty kernel, until another event's cuEventSynchronize returns", {
		KERNEL(kernel_empty(s));
		CU(EventRecord(spinning, s));
		CU(EventSynchronize(spinning));
	});
	LATENCY("empty kernel, until cuEventQuery in a loop says so", {
		KERNEL(kernel_empty(s));
		CU(EventRecord(spinning, s));
		spin_for(spinning);
	});
	LATENCY("recording an event, the call", CU(EventRecord(spinning, s)));
	LATENCY("copying 4 KiB to the device, the call", CU(MemcpyHtoDAsync(dev, host, 4096, s)));
	LATENCY("copying 4 KiB to the device, until cuStreamSynchronize returns", {
		CU(MemcpyHtoDAsync(dev, host, 4096, s));
		CU(StreamSynchronize(s));
	});
	LATENCY("copying 4 KiB to the host, until cuStreamSynchronize returns", {
		CU(MemcpyDtoHAsync(host, dev, 4096, s));
		CU(StreamSynchronize(s));
	});
	LATENCY("cuStreamSynchronize of an idle stream", CU(StreamSynchronize(s)));
	LATENCY("cuStreamCreate and cuStreamDestroy", {
		CUstream other = new_stream();

		CU(StreamDestroy(other));
	});
}

/* ---- the machine ---- */

static const struct {
	const char *name;
	int attribute;
	bool yes_or_no;
} attributes[] = {
	{ "compute_capability_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, false },
	{ "compute_capability_minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, false },
	{ "multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, false },
	{ "clock_khz", CU_DEVICE_ATTRIBUTE_CLOCK_RATE, false },
	{ "memory_clock_khz", CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, false },
	{ "memory_bus_bits", CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, false },
	{ "l2_bytes", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, false },
	{ "copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, false },
	{ "ecc", CU_DEVICE_ATTRIBUTE_ECC_ENABLED, true },
	{ "integrated", CU_DEVICE_ATTRIBUTE_INTEGRATED, true },
	{ "unified_addressing", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, true },
	{ "virtual_memory_management", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, true },
	{ "handles_are_descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, true },
	{ "gpu_direct_rdma_with_vmm", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, true },
	{ "stream_wait_value_nor", CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, true },
	{ "stream_memory_operations_64_bit", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, true },
	{ "can_use_host_pointer", CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, true },
	{ "host_register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, true },
	{ "host_register_read_only", CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, true },
	{ "host_native_atomics", CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, true },
	{ "pageable_memory_access", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, true },
	{ "compute_preemption", CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, true },
	{ "host_numa_id", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, false },
};

static void put_attributes(void)
{
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
		int v;

		/* One that the driver does not know is left out. */
		if (cu.DeviceGetAttribute(&v, (CUdevice_attribute)attributes[i].attribute, 0))
			continue;
		if (attributes[i].yes_or_no)
			row_bool(attributes[i].name, v != 0);
		else
			row_number(attributes[i].name, v);
	}
}

/* A line of a file of GPU 0's on the PCI bus. */
static void put_pci(const char *name, const char *file)
{
	char path[128], line[64];
	int domain, bus, device;
	FILE *f;

	if (cu.DeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0) ||
	    cu.DeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0) ||
	    cu.DeviceGetAttribute(&device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0))
		return;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.0/%s", (unsigned)domain,
		 (unsigned)bus, (unsigned)device, file);
	f = fopen(path, "re");
	if (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		row_text(name, line);
	}
	if (f)
		fclose(f);
}

static void put_environment(void)
{
	static const char *const names[] = { "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
					     "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES",
					     "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS",
					     "CUDA_LAUNCH_BLOCKING" };

	row_open("environment");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (getenv(names[i]))
			row_text(names[i], getenv(names[i]));
	row_close();
}

static int say_machine(void)
{
	static const char *const modes[] = { "default", "exclusive", "prohibited", "exclusive process" };
	char name[128] = "", version[32];
	size_t available, total;
	int v;

	rows_section("machine");
	gpu_start();
	CU(DeviceGetName(name, sizeof(name), 0));
	CU(MemGetInfo(&available, &total));
	row_begin("GPU 0");
	row_text("name", name);
	row_number("gpus", gpu_count());
	CU(DriverGetVersion(&v));
	snprintf(version, sizeof(version), "%d.%d", v / 1000, v % 1000 / 10);
	row_text("driver_is_for_cuda", version);
	snprintf(version, sizeof(version), "%d.%d", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
	row_text("built_with_cuda", version);
	row_number("memory_bytes", (double)total);
	row_number("free_bytes", (double)available);
	CU(DeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0));
	row_text("compute_mode", v >= 0 && v < 4 ? modes[v] : "unknown");
	put_attributes();
	put_pci("pcie_speed", "current_link_speed");
	put_pci("pcie_speed_most", "max_link_speed");
	put_pci("pcie_width", "current_link_width");
	put_pci("pcie_width_most", "max_link_width");
	put_pci("numa_node", "numa_node");
	put_environment();
	row_end();
	return 0;
}

static int say_gpus(void)
{
	const char *why = driver_start();
	int n = why ? 0 : gpu_count();

	printf("%d\n", n);
	if (why)
		fprintf(stderr, "gpu-ceilings: %s\n", why);
	return why ? 77 : 0;
}

static int hold(void)
{
	char buf[64];

	gpu_start();
	puts("ready");
	fflush(stdout);
	while (read(STDIN_FILENO, buf, sizeof(buf)) > 0)
		;
	return 0;
}

static const struct section sections[] = {
	{ "copies", 8, 0, section_copies },
	{ "chunks", 8, 15, section_chunks },
	{ "launches", 3, 0, section_launches },
	{ "within", 4, 0, section_within },
	{ "host_access", 6, 0, section_host_access },
	{ "registration", 8, 12, section_registration },
	{ "both_ways", 4, 0, section_both_ways },
	{ "batched", 10, 15, section_batched },
	{ "allocations", 4, 8, section_allocations },
	{ "between", 3, 0, section_between },
	{ "events", 3, 0, section_events },
	{ "alive", 24, 35, section_alive },
	{ NULL, 0, 0, NULL },
};

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--gpus"))
		return say_gpus();
	if (argc == 2 && !strcmp(argv[1], "--machine"))
		return say_machine();
	if (argc == 2 && !strcmp(argv[1], "--hold"))
		return hold();
	return sections_main("gpu-ceilings", sections, argc, argv);
}
