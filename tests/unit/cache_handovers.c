/* cache_handovers.c - many chunks are handed to a client, by several messages. */
#include "cache_acquires.h"

#define CHUNKS (2 * GAIA_MSG_CHUNKS + 3) /* three messages */
#define LENGTH (CHUNKS * (uint64_t)GAIA_CHUNK)

static unsigned sent[3];	/* chunks, when the answer to each message was waited for */
static int says[3];		/* what the client answers */

static int note_answer(void *arg, struct client *client, unsigned nth)
{
	(void)arg;
	/* Those that come after these are of a second attempt. */
	if (nth >= ARRAY_LEN(sent))
		return 0;
	sent[nth] = atomic_load(&client->granted);
	return says[nth];
}

static struct client *begin_handovers(int first, int second, int third)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = CHUNKS }, LENGTH);
	memset(sent, 0, sizeof(sent));
	says[0] = first;
	says[1] = second;
	says[2] = third;
	rig->before_answer = note_answer;
	rig->old_clients = true; /* messages are full of single chunks */
	return client_create(kf, 0, GAIA_PROT_READ, LENGTH);
}


Test(messages, are_sent_while_the_client_works_on_the_one_before)
{
	struct client *cl = begin_handovers(0, 0, 0);

	cr_assert_eq(client_acquire(cl, 0, LENGTH, GAIA_PROT_READ), 0);
	cr_assert_eq(atomic_load(&cl->messages), 3);
	cr_assert_eq(sent[0], 2 * GAIA_MSG_CHUNKS, "the second was sent before the first's answer was waited for");
	cr_assert_eq(sent[1], CHUNKS);
	cr_assert_eq(sent[2], CHUNKS);
	cr_assert_eq(client_acquire(cl, 0, LENGTH, GAIA_PROT_READ), 0);
	cr_assert_eq(atomic_load(&cl->messages), 3, "it has them");
	cr_assert_eq(client_release(cl, 0, LENGTH), 0);
	cr_assert_eq(client_release(cl, 0, LENGTH), 0);
	end();
}

/* Nothing more is sent then; what the client has it is asked for when that is evicted, and what it refused is handed over again. */
static void refused(int first, int second, int third, unsigned messages)
{
	struct client *cl = begin_handovers(first, second, third);

	cr_assert_eq(client_acquire(cl, 0, LENGTH, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(atomic_load(&cl->messages), messages);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	cr_assert_eq(client_acquire(cl, 0, LENGTH, GAIA_PROT_READ), 0);
	for (unsigned k = 0; k < CHUNKS; k++)
		cr_assert(cl->chunk[k], "chunk %u", k);
	cr_assert_eq(client_release(cl, 0, LENGTH), 0);
	end();
}

Test(messages, that_are_refused_fail_the_acquire)
{
	refused(-ENOMEM, 0, 0, 2);
	refused(0, -ENOMEM, 0, 3);
	refused(0, 0, -ENOMEM, 3);
	refused(-ENOMEM, -EMFILE, 0, 2);
}

Test(messages, that_were_sent_are_waited_for_when_the_next_cannot_be)
{
	struct client *cl = begin_handovers(0, 0, 0);

	fault_arm("device.export", -EMFILE, GAIA_MSG_CHUNKS + 5, 1);
	cr_assert_eq(client_acquire(cl, 0, LENGTH, GAIA_PROT_READ), -EMFILE);
	cr_assert_eq(atomic_load(&cl->messages), 1);
	cr_assert_eq(sent[0], GAIA_MSG_CHUNKS);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	cr_assert_eq(client_acquire(cl, 0, LENGTH, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(cl, 0, LENGTH), 0);
	end();
}
