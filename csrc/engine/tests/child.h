/* Code that is expected to end its process, run in a child. */
#ifndef MU_TEST_CHILD_H
#define MU_TEST_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How a child ended, and the beginning of what it wrote to stderr. */
struct child_end {
    int status; /* as of waitpid; -1 when there was no child */
    char text[4096];
};

static inline struct child_end child_run(void (*run)(const void *context), const void *context) {
    struct child_end end = {.status = -1};
    FILE *file = tmpfile();
    pid_t child = file == NULL ? -1 : fork();
    if (child == 0) {
        dup2(fileno(file), STDERR_FILENO);
        run(context);
        _exit(0);
    }
    if (child > 0 && waitpid(child, &end.status, 0) == child) {
        rewind(file);
        size_t length = fread(end.text, 1, sizeof(end.text) - 1, file);
        end.text[length] = '\0';
    }
    if (file != NULL) {
        fclose(file);
    }
    return end;
}

static inline bool child_aborted(const struct child_end *end) {
    return end->status != -1 && WIFSIGNALED(end->status) && WTERMSIG(end->status) == SIGABRT;
}

#endif
