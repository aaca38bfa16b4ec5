/* rig_detect.c - see rig_detect.h. */
#include "rig_detect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

struct rig_page {
	unsigned holds;
	bool writes, unsure; /* some hold is for writing; what it was is not known */
	unsigned char *was;  /* what it was when it was acquired; NULL: not known */
};

struct rig_detect {
	pthread_mutex_t lock;
	uint64_t pages;
	struct rig_page page[];
};

struct rig_detect *rig_detect_make(uint64_t pages)
{
	struct rig_detect *d = xcalloc(1, sizeof(*d) + pages * sizeof(d->page[0]));

	pthread_mutex_init(&d->lock, NULL);
	d->pages = pages;
	return d;
}

void rig_detect_free(struct rig_detect *d)
{
	for (uint64_t i = 0; i < d->pages; i++)
		free(d->page[i].was);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static void forget(struct rig_page *p)
{
	free(p->was);
	p->was = NULL;
}

static void take_hold(struct rig_page *p)
{
	if (p->holds == 0 || --p->holds == 0) {
		forget(p);
		*p = (struct rig_page){ 0 };
	} else {
		/* What others hold has been published, or may have been. */
		p->unsure = true;
	}
}

void rig_detect_begin(struct client *cl, uint64_t a, uint64_t b, unsigned prot)
{
	pthread_mutex_lock(&cl->detect->lock);
	for (uint64_t i = a; i < b; i++) {
		struct rig_page *p = &cl->detect->page[i];

		if (prot & GAIA_PROT_WRITE) {
			p->unsure = p->writes || !(prot & GAIA_PROT_READ);
			p->writes = true;
		}
		p->holds++;
	}
	pthread_mutex_unlock(&cl->detect->lock);
}

static void arm(struct client *cl, uint64_t i)
{
	struct rig_page *p = &cl->detect->page[i];
	const unsigned char *at = client_at(cl, i * GAIA_PAGE);

	if (!p->writes || p->unsure || p->was)
		return;
	p->unsure = !at;
	if (!at)
		return;
	p->was = xmalloc(GAIA_PAGE);
	memcpy(p->was, at, GAIA_PAGE);
}

void rig_detect_end(struct client *cl, uint64_t a, uint64_t b, unsigned prot, int err)
{
	pthread_mutex_lock(&cl->detect->lock);
	for (uint64_t i = a; i < b; i++) {
		if (err)
			take_hold(&cl->detect->page[i]);
		else if (prot & GAIA_PROT_WRITE)
			arm(cl, i);
	}
	pthread_mutex_unlock(&cl->detect->lock);
}

static bool changed(struct client *cl, uint64_t i)
{
	struct rig_page *p = &cl->detect->page[i];
	const unsigned char *at = client_at(cl, i * GAIA_PAGE);
	bool differs = p->unsure || !p->was || !at || memcmp(p->was, at, GAIA_PAGE) != 0;

	forget(p);
	p->unsure = true;
	return differs;
}

static bool nothing_changed(int err)
{
	return err == -EINVAL || err == -EINTR || err == -ENOBUFS || err == -ENOSR || err == -ENOTCONN;
}

/* The page, as far as the range has it: that may end where the mapping ends. */
static struct gaia_list_range part_of_page(struct gaia_list_range range, uint64_t i)
{
	uint64_t from = MAX(range.offset, i * GAIA_PAGE), end = MIN(range.offset + range.length, (i + 1) * GAIA_PAGE);

	return (struct gaia_list_range){ from, end - from };
}

int rig_detect_release(struct client *cl, uint64_t off, uint64_t len)
{
	uint64_t a = off / GAIA_PAGE, b = len > 0 ? (off + len - 1) / GAIA_PAGE + 1 : a, n = 0;
	struct gaia_list_range range = { off, len }, *told = xcalloc(b - a + 1, sizeof(*told));
	int err;

	pthread_mutex_lock(&cl->detect->lock);
	b = MIN(b, cl->n_chunks * GAIA_CHUNK_PAGES);
	for (uint64_t i = a; i < b; i++)
		/* Also what was acquired without our knowing. */
		if (changed(cl, i))
			told[n++] = part_of_page(range, i);
	pthread_mutex_unlock(&cl->detect->lock);
	err = cache_release_told(cl->mapping, &range, 1, told, n, false, &(bool){ false });
	free(told);
	pthread_mutex_lock(&cl->detect->lock);
	for (uint64_t i = a; i < b && !nothing_changed(err); i++)
		take_hold(&cl->detect->page[i]);
	pthread_mutex_unlock(&cl->detect->lock);
	return err;
}
