/* The tensor hash against XXH3_128 and the plain read of memory, on one thread, without Python:
 * `tensor_hash BYTES ROUNDS` prints the median ns of one pass of each in processor time, the sides
 * taking turns, as lines "name ns". All read the same memory; the line "huge_pages" has the part of
 * it that is on huge pages, from 0 to 1. XXH3 is compiled from its header (xxhash.h) with the flags
 * of this program, so that it has the same vectors as the kernel that it is measured against;
 * without the header it is left out. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

#include "hash/tensor_hash.h"

enum { ROUNDS_MAX = 1000, SIDES_MAX = 8 };

/* Bytes that one measurement covers at least, so that the clock's reading costs nothing. */
static const size_t measured_bytes = 8 << 20;

typedef uint64_t (*pass)(const uint8_t *bytes, size_t count, const void *context);

struct side {
    const char *name;
    pass run;
    const void *context;
    double ns[ROUNDS_MAX];
};

typedef uint64_t vector __attribute__((vector_size(32), aligned(1), may_alias));

/* The least work that touches every byte. */
static uint64_t read_all(const uint8_t *bytes, size_t count, const void *context) {
    (void)context;
    vector sum[4] = {{0}};
    for (size_t i = 0; i + sizeof(sum) <= count; i += sizeof(sum)) {
        const vector *at = (const vector *)(bytes + i);
        sum[0] ^= at[0];
        sum[1] ^= at[1];
        sum[2] ^= at[2];
        sum[3] ^= at[3];
    }
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    return sum[0][0] ^ sum[0][1] ^ sum[0][2] ^ sum[0][3];
}

#ifdef XXH_INLINE_ALL
static uint64_t xxh3(const uint8_t *bytes, size_t count, const void *context) {
    (void)context;
    XXH128_hash_t digest = XXH3_128bits(bytes, count);
    return digest.low64 ^ digest.high64;
}
#endif

static uint64_t ours(const uint8_t *bytes, size_t count, const void *kernel) {
    struct mu_digest digest;
    mu_tensor_hash_bytes(kernel, bytes, count, &digest);
    return digest.lo ^ digest.hi;
}

static double now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static void measure(struct side *side, const uint8_t *bytes, size_t count, int round) {
    static volatile uint64_t kept;
    size_t passes = count < measured_bytes ? measured_bytes / count : 1;
    double began = now_ns();
    for (size_t i = 0; i < passes; i++) {
        kept = kept + side->run(bytes, count, side->context);
    }
    side->ns[round] = (now_ns() - began) / (double)passes;
}

/* The memory begins at one: unaligned, every load of 64 bytes touches two lines. */
static const size_t huge_page = 2 << 20;

static size_t whole_pages(size_t count) {
    return (count + huge_page - 1) / huge_page * huge_page;
}

/* The part of the memory from `bytes` on that the kernel has put on huge pages; 0 where it does not
 * say. */
static double on_huge_pages(const uint8_t *bytes, size_t count) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long long from, to, kib, huge_kib = 0;
    bool here = false;
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            here = from < (uintptr_t)bytes + count && to > (uintptr_t)bytes;
        } else if (here && sscanf(line, "AnonHugePages: %llu kB", &kib) == 1) {
            huge_kib += kib;
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return (double)huge_kib * 1024 / (double)whole_pages(count);
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static int add_kernels(struct side *sides, int count) {
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct mu_hash_kernel *kernel = mu_hash_kernel_by_name(names[i]);
        if (kernel != NULL) {
            sides[count++] = (struct side){.name = kernel->name, .run = ours, .context = kernel};
        }
    }
    return count;
}

int main(int argc, char **argv) {
    static struct side sides[SIDES_MAX];
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1 << 20;
    int rounds = argc > 2 ? atoi(argv[2]) : 11;
    uint8_t *bytes = count > 0 ? aligned_alloc(huge_page, whole_pages(count)) : NULL;
    if (bytes == NULL || rounds < 1 || rounds > ROUNDS_MAX) {
        return 2;
    }
    madvise(bytes, whole_pages(count), MADV_HUGEPAGE); /* where it is refused, small ones serve */
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    int side_count = 0;
    sides[side_count++] = (struct side){.name = "read", .run = read_all};
#ifdef XXH_INLINE_ALL
    sides[side_count++] = (struct side){.name = "xxh3_128", .run = xxh3};
#endif
    side_count = add_kernels(sides, side_count);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < side_count; i++) {
            measure(&sides[i], bytes, count, round);
        }
    }
    printf("huge_pages %.3f\n", on_huge_pages(bytes, count));
    for (int i = 0; i < side_count; i++) {
        qsort(sides[i].ns, (size_t)rounds, sizeof(double), ascending);
        printf("%s %.1f\n", sides[i].name, sides[i].ns[rounds / 2]);
    }
    free(bytes);
    return 0;
}
