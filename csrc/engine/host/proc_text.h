/* Short files of /proc and of cgroups, which are read again and again. */
#ifndef MU_PROC_TEXT_H
#define MU_PROC_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/own_files.h"

/* A file that stays open, closed by mu_proc_close. A program may close its descriptor and open
 * another file under the number, which is left alone then. */
struct mu_proc_file {
    int fd; /* -1: there is none */
    struct mu_file_id id;
};

#define MU_NO_PROC_FILE ((struct mu_proc_file){.fd = -1})

/* Opens a file for reading: none where the kernel has none or refuses it, with errno. */
struct mu_proc_file mu_proc_open(const char *path);

/* The same for the file `name` of a process, as "io". */
struct mu_proc_file mu_proc_open_of(pid_t process, const char *name);

/* Leaves no file. Does nothing where there is none. */
void mu_proc_close(struct mu_proc_file *file);

/* Reads the file from its beginning, as much as fits, with a NUL behind it. False, and no text,
 * where there is nothing to read. */
bool mu_proc_text(const struct mu_proc_file *file, char *text, size_t size);

#endif
