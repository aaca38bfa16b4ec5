/*
 * probe.h - static probes for tracers (bpftrace, SystemTap, perf, gdb), as user-space DTrace has them.
 *
 * Where <sys/sdt.h> is there at build (-Dprobes), each is one no-op instruction and a note in the binary, that nobody notices until a tracer
 * puts a breakpoint in its place: so they pass only what is at hand, and no time. Files are named by their keys, as in traces (trace.h). The probes,
 * of provider "gaiafs" (pages of 4 KiB; errors are 0 or a negative errno):
 *
 *	acquire__begin(file, a, b, ranges, device, writes)	an acquire of so many ranges (not counting those that touch) within pages [a, b)
 *	acquire__end(file, device, error)			the next on the same thread
 *	release__begin(file, a, b, ranges, device)
 *	release__end(file, device, error, changed)
 *	fill(file, first page, pages, of them read, error)	a run of pages came home from storage
 *	fetch(file, pages, device, error)			pages that a device had released came home
 *	evict(file, chunk, device, error)			a chunk left a device, or could not
 *	evict__home(file, chunk, pages)				pages were dropped from home, as "home_evicted" counts them
 *	writeback(file, first page, pages, error)		a run of pages went to storage
 *
 * scripts/trace/ has programs that use them.
 */
#ifndef GAIA_BASE_PROBE_H
#define GAIA_BASE_PROBE_H

#ifdef GAIA_PROBES
#include <sys/sdt.h>

#define PROBE3(name, a, b, c) DTRACE_PROBE3(gaiafs, name, a, b, c)
#define PROBE4(name, a, b, c, d) DTRACE_PROBE4(gaiafs, name, a, b, c, d)
#define PROBE5(name, a, b, c, d, e) DTRACE_PROBE5(gaiafs, name, a, b, c, d, e)
#define PROBE6(name, a, b, c, d, e, f) DTRACE_PROBE6(gaiafs, name, a, b, c, d, e, f)
#else
/* Nothing is evaluated. */
#define PROBE3(name, a, b, c) ((void)sizeof((a) + (b) + (c)))
#define PROBE4(name, a, b, c, d) ((void)sizeof((a) + (b) + (c) + (d)))
#define PROBE5(name, a, b, c, d, e) ((void)sizeof((a) + (b) + (c) + (d) + (e)))
#define PROBE6(name, a, b, c, d, e, f) ((void)sizeof((a) + (b) + (c) + (d) + (e) + (f)))
#endif

#endif
