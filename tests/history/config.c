/*
 * config.c - what is mounted and who takes part, drawn from a seed.
 */
#include <stdio.h>
#include <string.h>

#include "gpu_access.h"
#include "history.h"

static const struct {
	const char *name;
	unsigned percent;	/* of the configurations have it */
} features[FEATURES] = {
	[F_MMAP] = { "mmap", 85 },
	[F_APPEND] = { "append", 30 },
	[F_DIRECT] = { "direct", 30 },
	[F_TRUNCATE] = { "truncate", 35 },
	[F_PUNCH] = { "punch", 35 },
	[F_COPY] = { "copy", 30 },
	[F_RENAME] = { "rename", 30 },
	[F_UNLINK] = { "unlink", 20 },
	[F_SYNC] = { "sync", 60 },
	[F_DEATH] = { "death", 50 },
	[F_UNMAP] = { "unmap", 40 },
	[F_ADVISE] = { "advise", 30 },
	[F_EVICT_HOME] = { "evict-home", 60 },
	[F_EVICT_DEVICE] = { "evict-device", 60 },
	[F_FLUSH] = { "flush", 60 },
	[F_FORGET] = { "forget", 50 },
	[F_TINY] = { "tiny", 50 },
	[F_LARGE] = { "large", 30 },
	[F_SLOW] = { "slow", 50 },
	[F_FAIL] = { "fail", 15 },
	[F_CRASH] = { "crash", 30 },
	[F_START] = { "start", 40 },
	[F_OVERWRITE] = { "overwrite", 50 },
	[F_PARK] = { "park", 40 },
	[F_HOST] = { "host", 40 },
	[F_EQUAL] = { "equal", 40 },
};

const char *feature_name(enum feature f)
{
	return features[f].name;
}

const char *const way_names[WAYS] = { "writeback", "writethrough", "auto" };

const char *config_way(const struct config *c)
{
	return way_names[c->writeback ? WRITEBACK : c->automatic ? AUTO : WRITETHROUGH];
}

void config_draw(struct config *c, uint64_t seed, enum way way)
{
	unsigned how;

	reseed(seed);
	memset(c, 0, sizeof(*c));
	c->seed = seed;
	c->writeback = way == WRITEBACK;
	c->automatic = way == AUTO;
	for (unsigned f = 0; f < FEATURES; f++)
		if (f != F_START && f < F_PARK && chance(features[f].percent))
			c->features |= 1u << f;
	c->cpus = 2 + below(below(2) ? 5 : 2);
	c->devices = 1 + below(MAX_DEVICES);
	c->clients = 1 + below(MAX_CLIENTS);
	for (unsigned i = 0; i < MAX_CLIENTS; i++)
		/* Mostly one client a device: sharing a device hides what would be wrong. */
		c->client_device[i] = i < c->devices ? i : below(c->devices);
	if (c->clients > c->devices && chance(50))
		c->clients = c->devices;
	c->slots = 1 + below(MAX_SLOTS);
	how = below(20);
	if (how < 3)
		c->hot = 1;
	else if (how < 12)
		c->hot = 2 + below(3);
	else if (how < 17)
		c->hot = 5 + below(12);
	else
		c->hot = 17 + below(MAX_HOT - 16);
	c->bytes = !HAS(c, F_LARGE) && chance(30);
	if (c->bytes && c->hot > 4)
		c->hot = 1 + below(4);
	/* See do_write(). */
	if (way != WRITEBACK)
		c->features &= ~(1u << F_APPEND);
	if (HAS(c, F_LARGE)) {
		c->features &= ~(1u << F_APPEND);
		c->hot = 8 + below(25);
	}
	c->run_ms = 150 + below(450);
	/* Last, since it came last: what seeds draw stays. */
	if (chance(features[F_START].percent))
		c->features |= 1u << F_START;
	if (chance(features[F_PARK].percent))
		c->features |= 1u << F_PARK;
	if (chance(features[F_HOST].percent))
		c->features |= 1u << F_HOST;
	for (unsigned i = 0; i < MAX_CLIENTS && HAS(c, F_HOST); i++)
		if (chance(60))
			c->client_device[i] = c->devices + below(2);
	/* Copies make pages that are equal; what is read again is looked for. */
	if (chance(features[F_EQUAL].percent))
		c->features |= 1u << F_EQUAL | 1u << F_COPY | 1u << F_EVICT_HOME;
}

void config_print(const struct config *c)
{
	printf("%s, %s, %u cpu, %u device%s, client%s on", config_way(c), c->bytes ? "bytes" : "words", c->cpus, c->devices, c->devices == 1 ? "" : "s",
	       c->clients == 1 ? "" : "s");
	for (unsigned i = 0; i < c->clients; i++)
		printf(" %u", c->client_device[i]);
	printf(", %u file%s of %u pages:", c->slots, c->slots == 1 ? "" : "s", c->hot);
	for (unsigned f = 0; f < FEATURES; f++)
		if (HAS(c, f))
			printf(" %s", features[f].name);
}

const char *const *config_args(const struct config *c)
{
	static const char *args[24];
	static char device[MAX_DEVICES][64];
	unsigned n = 0;

	for (unsigned i = 0; i < c->devices; i++) {
		args[n++] = "--device";
		args[n++] = gpu_option(i, HAS(c, F_TINY) ? "4M" : "64M", device[i]);
		/* Two slabs: with as little as is in a tiny device they come and go. */
		if (HAS(c, F_PARK))
			strncat(device[i], ",cache=4M", sizeof(device[i]) - strlen(device[i]) - 1);
	}
	args[n++] = "--home";
	args[n++] = HAS(c, F_TINY) ? "8M" : "256M";
	args[n++] = "--cpu-cache";
	args[n++] = config_way(c);
	/* What devices release is fetched at any moment. */
	args[n++] = "--device-age";
	args[n++] = HAS(c, F_TINY) || HAS(c, F_EVICT_HOME) ? "0.02" : "3600";
	if (HAS(c, F_EQUAL)) {
		args[n++] = "--dedup";
		args[n++] = "home";
	}
	args[n] = NULL;
	return args;
}

bool config_fails(const struct config *c)
{
	return HAS(c, F_FAIL);
}

static void add(char *text, size_t room, const char *fmt, const char *point, unsigned a, unsigned b)
{
	size_t n = strlen(text);

	if (n && n + 1 < room)
		text[n++] = ';';
	snprintf(text + n, room - n, fmt, point, a, b);
}

const char *config_faults(const struct config *c)
{
	static char text[2048];
	static const char *const slow[] = {
		"device.copy_in", "device.copy_out", "device.copy_within", "device.find_changed",
		"device.submit", "store.read", "store.write", "fetch.before_merge",
		"acquire.before_grant", "release.before_publish", "release.before_invalidate", "notifier.before_invalidate",
		"truncate.before_cut", "device.copy_peer", "ready.before_catch_up",
	};
	static const char *const failing[] = {
		"store.write=errno:EIO", "store.write=errno:ENOSPC", "store.sync=errno:EIO",
		"store.read=errno:EIO", "device.copy_in=errno:EIO", "device.copy_out=errno:EIO",
		"device.copy_within=errno:EIO", "device.alloc=errno:ENOMEM",
		"device.find_changed=errno:EIO", "device.copy_peer=errno:EIO",
	};

	text[0] = '\0';
	reseed(c->seed ^ 0xfa17);
	for (unsigned i = 0; HAS(c, F_SLOW) && i < sizeof(slow) / sizeof(slow[0]); i++)
		if (chance(35))
			add(text, sizeof(text), "%s=delay:%uus,seed=%u", slow[i],
			    chance(50) ? 200 : 3000, below(1000));
	if (HAS(c, F_FAIL))
		for (unsigned n = 1 + below(3); n > 0; n--)
			add(text, sizeof(text), "%s,after=%u,count=%u",
			    failing[below(sizeof(failing) / sizeof(failing[0]))], below(300),
			    1 + below(5));
	/* All that leaves home is parked, and comes from there. */
	if (HAS(c, F_PARK))
		add(text, sizeof(text), "%s=errno:ENOSPC;source.store_is_dear=errno:ENOSPC", "park.all", 0, 0);
	/* All pages are looked for; with a hash that is the same for all of them, as often as not. */
	if (HAS(c, F_EQUAL))
		add(text, sizeof(text), "%s=errno:EEXIST", "dedup.all", 0, 0);
	if (HAS(c, F_EQUAL) && chance(50))
		add(text, sizeof(text), "%s=errno:EEXIST", "dedup.collide", 0, 0);
	if (c->more_faults)
		add(text, sizeof(text), "%s", c->more_faults, 0, 0);
	return text;
}
