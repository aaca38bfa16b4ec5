/*
 * attackers.h - attacks by users: functions for child_start(), which become hostile_uid first. Each counts what it did in
 * shared->count unless it says otherwise, opens the gate `ready` once it attacks, and goes on until it is killed, or has lost all
 * that it attacked with.
 */
#ifndef GAIA_TESTS_ATTACKERS_H
#define GAIA_TESTS_ATTACKERS_H

#include <stdatomic.h>

#include "gaia/protocol.h"

/* ---- those that take as much as there is, keep it, and note in shared->error why there is no more ---- */

int take_clients(void *arg);
int take_mappings(void *arg); /* of the file "f" */
int take_pins(void *arg);     /* of its first page */
int take_directories(void *arg);
/* Files of the directory "open", removed and kept open: each takes a descriptor of the daemon's. */
int take_nameless_files_by_four(void *arg);
#define HOARDERS 4 /* each opens the gate */

/* Without end. */
int flood_with_tickets(void *arg);
int connect_and_say_nothing(void *arg);

/* ---- those that do not give memory up: shared->done clients, which were asked for it ->more times ---- */

#define MUTE 6

int share_a_chunk_and_be_mute(void *arg); /* all of one file, mute_shared, which may be set before they start */
extern const char *mute_shared;
int be_mute(void *arg);			  /* one of each of the files "m0" to "m5" */

#define FLOOD 200
#define FLOOD_BYTES (4ul * GAIA_CHUNK)

/* And FLOOD threads that acquire the file "wanted": once, or again and again. */
int be_mute_and_flood(void *arg);
int flood_with_acquires(void *arg);

/* ---- those that read the file "f" past the kernel's cache without a pause ---- */

#define STARVE_SIZE (16 * GAIA_PAGE)
#define READERS 16
#define HOPELESS (1000 * READERS) /* overtaken in one turn: the attacker need not go on */

/* Shared by the processes, and set before they start. */
extern struct score {
	atomic_ulong began, answered; /* reads */
	atomic_ulong turn; /* how many had begun when the turn under way did; 0: none is */
	atomic_ulong overtook;
	atomic_bool stop;
} *score;

int starve_writers(void *arg);

/* ---- those that fill what the daemon keeps, with files of their own ---- */

/* Writes the file "filled" from end to end, more than home has, and cuts it off. Counts pages. */
int fill_home(void *arg);
extern unsigned long fill_bytes; /* how long it gets; may be set before they start */
/* A device has the file "twins" for writing while it is written to: each page is kept twice, and merged. Counts pages. */
int fill_with_twins(void *arg);
/* Many threads write the file "synced" and wait until it is on the disk. */
int flood_with_fsyncs(void *arg);

/* ---- those that use what they have a right to in ways that they have not ---- */

int give_orders(void *arg); /* about the file "read", which they may only read */
/* To what they map of the file "read", on a device that cannot keep readers from it. */
int store_as_a_reader(void *arg);
#define STORE_DEVICE 2
int keep_memory(void *arg); /* of the file "kept", and store to it, when they are no clients any more */

#endif
