#include "host/proc_text.h"

#include <unistd.h>

bool mu_proc_text(int file, char *text, size_t size) {
    ssize_t got = file < 0 ? -1 : pread(file, text, size - 1, 0);
    if (got > 0) {
        text[got] = '\0';
    }
    return got > 0;
}

void mu_proc_close(int file) {
    if (file >= 0) {
        close(file);
    }
}
