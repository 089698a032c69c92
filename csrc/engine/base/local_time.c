#include "base/local_time.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* Of the whole process, as libc's lock is. */
static pthread_mutex_t inside = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void hold(void) {
    pthread_mutex_lock(&inside);
}

static void let_go(void) {
    pthread_mutex_unlock(&inside);
}

/* Without memory for it a fork may come at any moment, as if this file did not exist. */
static void watch_forks(void) {
    (void)pthread_atfork(hold, let_go, let_go);
}

size_t mu_local_time_text(int64_t second, const char *format, char *text, size_t size) {
    time_t time = (time_t)second;
    struct tm local;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&inside);
    if (localtime_r(&time, &local) == NULL) {
        memset(&local, 0, sizeof(local));
    }
    size_t length = strftime(text, size, format, &local);
    pthread_mutex_unlock(&inside);
    return length;
}
