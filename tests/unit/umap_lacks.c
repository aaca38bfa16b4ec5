/* Regions of gaia/umap.h where something is missing: what paging needs of the kernel, memory, descriptors, settings that make sense. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "umap_rig.h"

TestSuite(umap_lacks, .timeout = 100);

/* ---- no paging ---- */

static bool forbid_userfaultfd(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00 /* USERFAULTFD_IOC_NEW */, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int store_read(void *arg, void *buf, size_t n, uint64_t offset)
{
	memset(buf, 's', n);
	return 0;
}

static bool falls_back(struct rig *rig)
{
	struct gaia_umap_store store = { .size = sizeof(store), .read = store_read };
	struct gaia_umap_segment segments[] = {
		{ .fd = rig->fd, .offset = 4096, .length = 8192 }, { .fd = rig->fd, .length = 4096 },
	};
	void *page;

	if (!forbid_userfaultfd() || gaia_umap(&rig->config) != MAP_FAILED || errno != ENOSYS)
		return false;
	rig->config.flags = 0;
	rig->config.segments = segments;
	rig->config.n_segments = 2;
	rig->length = 3 * 4096;
	rig->view = gaia_umap(&rig->config);
	if (rig->view == MAP_FAILED || rig_stats(rig).is != GAIA_UMAP_IS_MMAP || rig_stats(rig).length != rig->length)
		return false;
	if (memcmp(rig->view, rig->content + 4096, 8192) || memcmp(rig->view + 8192, rig->content, 4096))
		return false;
	rig->view[8192] = 'f';
	page = rig->view;
	if (gaia_umap_flush(rig->view, rig->length, GAIA_UMAP_SYNC) || gaia_umap_prefetch(&page, 1, GAIA_UMAP_WAIT) ||
	    gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_DONTNEED) || gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_RANDOM) ||
	    gaia_uunmap(rig->view, rig->length))
		return false;
	segments[0].length = 5000;
	if (gaia_umap(&rig->config) != MAP_FAILED || errno != ENOTSUP)
		return false;
	segments[0] = (struct gaia_umap_segment){ .store = &store, .length = 4096 };
	rig->config.prot = PROT_READ;
	return gaia_umap(&rig->config) == MAP_FAILED && errno == ENOTSUP;
}

Test(umap_lacks, without_userfaultfd_it_is_a_mapping_and_says_so)
{
	struct rig *rig = rig_create(16 * 4096);

	cr_assert(rig_in_child(falls_back, rig));
	rig->content[0] = 'f';
	rig_check_file(rig, rig->content);
	rig_end(rig);
}

Test(umap_lacks, mmap_can_be_asked_for)
{
	struct rig *rig = rig_create(16 * 4096);

	rig->config.flags = GAIA_UMAP_USE_MMAP;
	rig_map(rig);
	cr_assert_eq(rig_stats(rig).is, GAIA_UMAP_IS_MMAP);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	rig_unmap(rig);
}

/* ---- descriptors ---- */

Test(umap_lacks, memory_of_regions_has_no_descriptors)
{
	struct rig *rig = rig_create(8 * 65536);
	char path[40], text[64];

	rig->config.page_size = 65536;
	rig_map(rig);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	for (int fd = 0; fd < 1024; fd++) {
		memset(text, 0, sizeof(text));
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		cr_assert(readlink(path, text, sizeof(text) - 1) < 0 || !strstr(text, "gaia_umap"), "descriptor %d", fd);
	}
	rig_unmap(rig);
}

/* ---- settings ---- */

Test(umap_lacks, settings_that_make_no_sense_are_as_if_not_set)
{
	static const char *const pages[] = { "12288", "65537", "-4096", " 8192", "x", "8192x", "", "8192" };
	struct rig *rig = rig_create(4 * 8192);

	for (unsigned i = 0; i < 8; i++) {
		setenv("GAIA_UMAP_PAGESIZE", pages[i], 1);
		rig_map(rig);
		cr_assert_eq(rig_stats(rig).page_size, i == 7 ? 8192 : 4096, "%s", pages[i]);
		cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	}
	rig_end(rig);
}
