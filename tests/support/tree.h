/*
 * tree.h - a directory tree as text, so that two can be compared.
 *
 * One line a name, sorted: path, type and mode, owner, links, size, extended
 * attributes, and a hash of the contents or a symbolic link's target. Contents and
 * attributes that the caller may not read are left out.
 */
#ifndef GAIA_TESTS_TREE_H
#define GAIA_TESTS_TREE_H

#include <limits.h>

/* To be freed. Aborts when the tree cannot be read. */
char *tree_print(int dirfd);
char *tree_print_path(const char *path);
/* Of what is beneath a mount: without what gaiafs notes on its files for itself. */
char *tree_print_beneath(int dirfd);

/* Make an empty directory of mode 0755 below @parent; NULL: $TMPDIR or /tmp. Aborts when it cannot. */
void tree_make_temp(const char *parent, char path[PATH_MAX]);

/* NULL if equal; else the first two differing lines, to be freed. */
char *tree_difference(const char *a, const char *b);

#endif
