/* Pieces of memory arrive whole and in order, however little the system takes at once. */
#include "base/write_pieces.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"

enum { PIECES = 3000, LENGTHS = 211, PIPE_BYTES = 4096 };

struct source {
    struct iovec pieces[PIECES];
    char *bytes; /* owned: of all pieces, in order */
    size_t length;
};

/* Lengths from 0 to 210, so that there are more pieces than a call takes. */
static void make(struct source *source) {
    source->length = 0;
    source->bytes = malloc((size_t)PIECES * LENGTHS);
    CHECK(source->bytes != NULL);
    for (size_t i = 0; i < PIECES; i++) {
        size_t length = i % LENGTHS;
        source->pieces[i] = (struct iovec){source->bytes + source->length, length};
        source->length += length;
    }
    for (size_t i = 0; i < source->length; i++) {
        source->bytes[i] = (char)(i * 31 % 251);
    }
}

struct reader {
    int fd;
    char *bytes; /* owned */
    size_t length, capacity;
};

static void *read_all(void *argument) {
    struct reader *reader = argument;
    ssize_t got = 1;
    while (got > 0 && reader->length < reader->capacity) {
        got = read(reader->fd, reader->bytes + reader->length, reader->capacity - reader->length);
        reader->length += got > 0 ? (size_t)got : 0;
    }
    return NULL;
}

static void test_a_narrow_pipe_gets_all(void) {
    struct source source;
    struct reader reader = {0};
    pthread_t thread;
    int ends[2];
    make(&source);
    CHECK_INT(pipe(ends), 0);
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES) > 0);
    reader = (struct reader){ends[0], malloc(source.length + 1), 0, source.length + 1};
    CHECK(reader.bytes != NULL);
    CHECK_INT(pthread_create(&thread, NULL, read_all, &reader), 0);
    CHECK_INT(mu_write_pieces(ends[1], source.pieces, PIECES, NULL), MU_OK);
    close(ends[1]);
    pthread_join(thread, NULL);
    CHECK_INT(reader.length, source.length);
    CHECK_INT(memcmp(reader.bytes, source.bytes, source.length), 0);
    close(ends[0]);
    free(reader.bytes);
    free(source.bytes);
}

static void test_nothing_is_written_of_nothing(void) {
    struct iovec empty[2] = {{NULL, 0}, {NULL, 0}};
    CHECK_INT(mu_write_pieces(-1, empty, 2, NULL), MU_OK);
    CHECK_INT(mu_write_pieces(-1, NULL, 0, NULL), MU_OK);
}

static void test_an_error_says_its_number(void) {
    struct mu_error err = {0};
    char byte = 'x';
    struct iovec piece = {&byte, 1};
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    CHECK(full >= 0);
    CHECK_INT(mu_write_pieces(full, &piece, 1, &err), MU_ERR_IO);
    CHECK_INT(err.sys_errno, ENOSPC);
    close(full);
}

int main(void) {
    test_a_narrow_pipe_gets_all();
    test_nothing_is_written_of_nothing();
    test_an_error_says_its_number();
    return check_report();
}
