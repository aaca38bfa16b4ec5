/*
 * faulty.c - a layer over any device that makes it fail at the fault points.
 *
 * An operation chosen to fail is replaced by one on the first half of its pages, so that the failure
 * comes in order and later. The last page that a copy reaches arrives as garbage: so code that uses the
 * remains of a failed copy is found out.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/util.h"
#include "device/device.h"

struct faulty {
	struct device base;

	/* Constant after creation. */
	struct device *under;
};

/* Replaces an operation that fails or, if err is 0, silently corrupts. Lives from submit to done. */
struct failing_op {
	struct dev_op op; /* submitted to the device below; its runs belong to this struct */
	struct dev_op *original;
	int err;
	struct dev_run runs[];
};

static const unsigned char garbage[GAIA_PAGE] __attribute__((aligned(GAIA_PAGE))) = {
	[0 ... GAIA_PAGE - 1] = 0xf7,
};

static struct faulty *to_faulty(struct device *dev)
{
	return container_of(dev, struct faulty, base);
}

static int faulty_alloc(struct device *dev, struct devmem **out)
{
	struct device *under = to_faulty(dev)->under;
	int err = fault_point("device.alloc");

	if (!err)
		err = under->ops->alloc(under, out);
	if (!err)
		(*out)->dev = dev;
	return err;
}

static int faulty_alloc_extent(struct device *dev, struct devmem *out[GAIA_EXTENT_CHUNKS])
{
	struct device *under = to_faulty(dev)->under;
	int err = fault_point("device.alloc");

	if (!err)
		err = under->ops->alloc_extent ? under->ops->alloc_extent(under, out) : -EOPNOTSUPP;
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS && !err; k++)
		out[k]->dev = dev;
	return err;
}

static void faulty_free(struct device *dev, struct devmem *mem)
{
	struct device *under = to_faulty(dev)->under;

	under->ops->free(under, mem);
}

static int faulty_export_fd(struct device *dev, struct devmem *mem, bool write)
{
	struct device *under = to_faulty(dev)->under;
	int err = fault_point("device.export");

	return err ? err : under->ops->export_fd(under, mem, write);
}

static int kind_fault_point(enum dev_kind kind)
{
	switch (kind) {
	case DEV_COPY_IN:
		return fault_point("device.copy_in");
	case DEV_COPY_OUT:
		return fault_point("device.copy_out");
	case DEV_COPY_WITHIN:
		return fault_point("device.copy_within");
	case DEV_COPY_PEER:
		return fault_point("device.copy_peer");
	case DEV_PULL:
		return fault_point("device.pull");
	case DEV_ZERO:
		return fault_point("device.zero");
	case DEV_ARM:
		return fault_point("device.arm");
	case DEV_FIND_CHANGED:
		return fault_point("device.find_changed");
	}
	return 0;
}

static void failing_op_done(struct dev_op *op, int err)
{
	struct failing_op *f = container_of(op, struct failing_op, op);
	struct dev_op *original = f->original;

	if (op->kind == DEV_COPY_OUT)
		memcpy(op->runs[op->n - 1].host, garbage, GAIA_PAGE);
	if (!err)
		err = f->err;
	free(f);
	original->done(original, err);
}

/* The run without its first @n pages. */
static struct dev_run run_without(const struct dev_run *run, uint32_t n)
{
	struct dev_run rest = *run;

	rest.page += n;
	rest.npages -= n;
	if (rest.host)
		rest.host = (char *)rest.host + (size_t)n * GAIA_PAGE;
	if (rest.base)
		rest.base = (const char *)rest.base + (size_t)n * GAIA_PAGE;
	return rest;
}

static struct failing_op *failing_op_create(struct dev_op *original, int err)
{
	struct failing_op *f = xcalloc(1, sizeof(*f) + (original->n + 1) * sizeof(f->runs[0]));
	struct dev_run *last = f->runs;
	uint64_t pages = 0;
	unsigned i;

	for (i = 0; i < original->n; i++)
		pages += original->runs[i].npages;
	pages = (pages + 1) / 2;
	for (i = 0; i < original->n; i++) {
		last = &f->runs[i];
		*last = original->runs[i];
		if (last->npages >= pages)
			break;
		pages -= last->npages;
	}
	/* The last page is a run of its own. */
	if (pages > 1) {
		last[1] = run_without(last, (uint32_t)pages - 1);
		last->npages = (uint32_t)pages - 1;
		last++;
	}
	last->npages = 1;
	f->op.kind = original->kind;
	f->op.arm = original->arm;
	if (original->kind == DEV_COPY_PEER) {
		/* Only one page is written, with garbage: pages that were not copied may happen to equal the source. */
		f->op.kind = DEV_COPY_IN;
		f->runs[0] = *last;
		last = f->runs;
	}
	if (f->op.kind == DEV_COPY_IN)
		last->host = (void *)garbage;
	f->op.runs = f->runs;
	f->op.n = (unsigned)(last - f->runs) + 1;
	f->op.changed = original->changed;
	f->op.done = failing_op_done;
	f->original = original;
	f->err = err;
	return f;
}

/* A malformed operation is left for the device to refuse. */
static bool can_fail_later(const struct dev_op *op)
{
	unsigned i;

	for (i = 0; i < op->n; i++)
		if (!op->runs[i].npages)
			return false;
	return op->n > 0 && op->done;
}

static int faulty_submit(struct device *dev, struct dev_op *op)
{
	struct device *under = to_faulty(dev)->under;
	struct failing_op *f;
	int err = fault_point("device.submit");
	bool garble;

	if (err)
		return err;
	err = kind_fault_point(op->kind);
	garble = !err && op->kind == DEV_COPY_PEER && fault_point("device.garble_peer");
	if ((!err && !garble) || !can_fail_later(op))
		return device_submit(under, op);
	f = failing_op_create(op, err);
	err = device_submit(under, &f->op);
	if (err)
		free(f);
	return err;
}

static void faulty_host_slab(struct device *dev, void *slab, enum host_slab what)
{
	struct device *under = to_faulty(dev)->under;

	if (under->ops->host_slab)
		under->ops->host_slab(under, slab, what);
}

static void *faulty_host_memory(struct device *dev, struct devmem *mem)
{
	struct device *under = to_faulty(dev)->under;

	return under->ops->host_memory ? under->ops->host_memory(under, mem) : NULL;
}

static bool faulty_reaches(struct device *dev, const struct device *from)
{
	return device_reaches(to_faulty(dev)->under, from);
}

static void faulty_destroy(struct device *dev)
{
	struct faulty *faulty = to_faulty(dev);

	faulty->under->ops->destroy(faulty->under);
	free(faulty);
}

static const struct device_ops faulty_ops = {
	.name = "faulty",
	.alloc = faulty_alloc,
	.alloc_extent = faulty_alloc_extent,
	.free = faulty_free,
	.export_fd = faulty_export_fd,
	.submit = faulty_submit,
	.host_slab = faulty_host_slab,
	.host_memory = faulty_host_memory,
	.reaches = faulty_reaches,
	.destroy = faulty_destroy,
};

int device_faulty_create(struct device *under, struct device **out)
{
	struct faulty *faulty = xmalloc(sizeof(*faulty));

	faulty->base = *under;
	faulty->base.ops = &faulty_ops;
	faulty->under = under;
	*out = &faulty->base;
	return 0;
}
