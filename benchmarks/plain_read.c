/* The plain read of memory, the limit of whatever looks at every byte: four vectors at a time,
 * or-ed together so that no load can be left out. Built as a shared library, so that it reads the
 * same memory in the same process as what it is measured against. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t vector __attribute__((vector_size(32)));

enum { VECTORS = 4, STEP = VECTORS * sizeof(vector) };

/* Reads the whole steps of 128 bytes among `count` bytes. */
uint64_t plain_read(const char *bytes, size_t count) {
    vector seen[VECTORS] = {{0}};
    for (size_t at = 0; at + STEP <= count; at += STEP) {
        for (int i = 0; i < VECTORS; i++) {
            vector next;
            memcpy(&next, bytes + at + (size_t)i * sizeof(next), sizeof(next));
            seen[i] |= next;
        }
    }
    seen[0] |= seen[1] | seen[2] | seen[3];
    return seen[0][0] | seen[0][1] | seen[0][2] | seen[0][3];
}
