#include "host/proc_text.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { PATH_BYTES = 64 };

struct mu_proc_file mu_proc_open(const char *path) {
    int fd = mu_above_streams(open(path, O_RDONLY | O_CLOEXEC));
    return fd < 0 ? MU_NO_PROC_FILE : (struct mu_proc_file){.fd = fd, .id = mu_file_id(fd)};
}

struct mu_proc_file mu_proc_open_of(pid_t process, const char *name) {
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)process, name);
    return mu_proc_open(path);
}

void mu_proc_close(struct mu_proc_file *file) {
    mu_close_file(file->fd, file->id);
    *file = MU_NO_PROC_FILE;
}

bool mu_proc_text(const struct mu_proc_file *file, char *text, size_t size) {
    ssize_t got = file->fd < 0 ? -1 : pread(file->fd, text, size - 1, 0);
    if (got > 0) {
        text[got] = '\0';
    }
    return got > 0;
}
