/* pins.c - acquires that were announced (GAIA_PROT_PIN). */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/pins.h"

#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/grant.h"
#include "pagecache/mapping.h"
#include "pagecache/range.h"
#include "pagecache/replica.h"
#include "pagecache/segments.h"

/* ---- announced acquires ---- */

#define PINS_MOST 4096u /* of a mapping */
#define BEYOND_MOST 64u /* of a pin: of a file that was cut off it is one, unless the client maps every other chunk */

static unsigned count_runs(struct grant **list, unsigned n)
{
	unsigned runs = 0;

	for (unsigned k = 0; k < n; k++)
		runs += k == 0 || list[k]->index != list[k - 1]->index + 1;
	return runs;
}

int pin_note(struct mapping *m, struct page_span span, uint64_t first, uint64_t n,
		    struct grant **beyond, unsigned n_beyond)
{
	unsigned runs = count_runs(beyond, n_beyond);
	struct pin *pin;
	int err = 0;

	if (runs > BEYOND_MOST)
		return -EAGAIN;
	pin = xcalloc(1, sizeof(*pin) + runs * sizeof(pin->beyond[0]));
	pin->span = span;
	pin->first = first;
	pin->n = n;
	for (unsigned k = 0; k < n_beyond; k++) {
		uint64_t index = beyond[k]->index;

		if (k == 0 || index != beyond[k - 1]->index + 1)
			pin->beyond[pin->n_beyond++].a = index;
		pin->beyond[pin->n_beyond - 1].b = index + 1;
	}
	pthread_mutex_lock(&m->lock);
	if (m->n_pins < PINS_MOST) {
		STAILQ_INSERT_TAIL(&m->pins, pin, link);
		m->n_pins++;
	} else {
		err = -EAGAIN;
	}
	pthread_mutex_unlock(&m->lock);
	if (err)
		free(pin);
	return err;
}

struct pin *pin_take(struct mapping *m, struct page_span span)
{
	struct pin *pin;

	pthread_mutex_lock(&m->lock);
	STAILQ_FOREACH(pin, &m->pins, link)
		if (!pin->taken && pin->span.a == span.a && pin->span.b == span.b)
			break;
	if (pin)
		pin->taken = true;
	pthread_mutex_unlock(&m->lock);
	return pin;
}

void pin_put_back(struct mapping *m, struct pin *pin)
{
	pthread_mutex_lock(&m->lock);
	pin->taken = false;
	pthread_mutex_unlock(&m->lock);
}

static bool pin_has(const struct pin *pin, uint64_t chunk)
{
	for (unsigned k = 0; k < pin->n_beyond; k++)
		if (chunk >= pin->beyond[k].a && chunk < pin->beyond[k].b)
			return true;
	return chunk >= pin->first && chunk - pin->first < pin->n;
}

void pin_end(struct mapping *m, struct pin *pin)
{
	struct segment span = { pin->span.a, pin->span.b, 1 };
	struct grant **list;
	unsigned n = grants_pin(m, (struct segments){ &span, 1 }, &list);

	for (unsigned k = 0; k < n; k++) {
		struct replica *rep = list[k]->replica;

		pthread_mutex_lock(&rep->chunk->lock);
		/* The client's death may have ended it. */
		if (pin_has(pin, list[k]->index) && list[k]->to_come > 0)
			list[k]->to_come--;
		grant_repin(list[k]);
		pthread_mutex_unlock(&rep->chunk->lock);
		replica_unpin(rep);
	}
	free(list);
	pthread_mutex_lock(&m->lock);
	STAILQ_REMOVE(&m->pins, pin, pin, link);
	m->n_pins--;
	pthread_mutex_unlock(&m->lock);
	free(pin);
}

void pins_drop(struct mapping *m)
{
	struct pin *pin;

	while ((pin = STAILQ_FIRST(&m->pins))) {
		STAILQ_REMOVE_HEAD(&m->pins, link);
		free(pin);
	}
}
