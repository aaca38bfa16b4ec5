/*
 * tree.h - a directory tree as text, so that two can be compared.
 *
 * One line a name, sorted: path, type and mode, owner, links, size, extended
 * attributes, and a hash of the contents or a symbolic link's target.
 */
#ifndef GAIA_TESTS_TREE_H
#define GAIA_TESTS_TREE_H

/* To be freed. Aborts when the tree cannot be read. */
char *tree_print(int dirfd);
char *tree_print_path(const char *path);

/* NULL if equal; else the first two differing lines, to be freed. */
char *tree_difference(const char *a, const char *b);

#endif
