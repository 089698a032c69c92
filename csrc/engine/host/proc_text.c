#include "host/proc_text.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { PATH_BYTES = 64 };

bool mu_proc_text(int file, char *text, size_t size) {
    ssize_t got = file < 0 ? -1 : pread(file, text, size - 1, 0);
    if (got > 0) {
        text[got] = '\0';
    }
    return got > 0;
}

int mu_proc_open(pid_t process, const char *name) {
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)process, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

void mu_proc_close(int file) {
    if (file >= 0) {
        close(file);
    }
}
