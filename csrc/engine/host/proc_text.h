/* Short files of /proc and of cgroups, which are read again and again. */
#ifndef MU_PROC_TEXT_H
#define MU_PROC_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Reads the file from its beginning, as much as fits, with a NUL behind it. file: a descriptor, or
 * -1. False, and no text, where there is nothing to read. */
bool mu_proc_text(int file, char *text, size_t size);

/* Opens the file `name` of a process, as "io": a descriptor, or -1 where the kernel has none or
 * refuses it. */
int mu_proc_open(pid_t process, const char *name);

/* file: a descriptor, or -1, which needs no closing. */
void mu_proc_close(int file);

#endif
