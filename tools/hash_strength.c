/* How strong the tensor hash is: digests of families of inputs that differ as tensors do.
 *
 * Each family has 2^24 inputs or more, all different. A family passes when no two of them have the
 * same half of a digest (64 bits: chance is one in 10^5), and when the pairs that share a word of
 * 32 bits are as many as chance has it, within four standard deviations. The words are the four of
 * the digest, and two that are made of 16 bits of each half. `make hash-strength` runs it: minutes
 * on one core, 1 GiB of memory. `hash_strength TEXT` runs the families with TEXT in their name.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hash/tensor_hash.h"

enum {
    AT_LEAST = 1 << 24,
    ROOM = 1 << 25, /* inputs of a family at most */
    WORDS = 6,      /* that are checked */
    UNITS = 5800,   /* 5800 * 5799 / 2 pairs are just enough */
};

static struct {
    struct mu_digest *digests; /* ROOM */
    size_t count;
    uint64_t *values, *spare; /* ROOM each, to sort */
    const struct mu_hash_kernel *kernel;
    const struct mu_hash_keys *keys;
} run;

static void emit(struct mu_digest digest) {
    if (run.count == ROOM) {
        fprintf(stderr, "a family of more than %d inputs\n", (int)ROOM);
        exit(2);
    }
    run.digests[run.count++] = digest;
}

static struct mu_digest hash_of(const void *bytes, size_t count) {
    struct mu_digest digest;
    mu_tensor_hash_bytes(run.kernel, bytes, count, &digest);
    return digest;
}

static void emit_hash(const void *bytes, size_t count) {
    emit(hash_of(bytes, count));
}

/* The same bytes in every run. */
static void fill_random(void *bytes, size_t count, uint64_t seed) {
    uint8_t *out = bytes;
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint8_t)(mu_hash_next_random(&seed) >> 24);
    }
}

/* --- inputs of many blocks, of which few change ------------------------------------------- */

enum { LARGE_BLOCKS = UNITS, LARGE_BYTES = LARGE_BLOCKS * MU_HASH_BLOCK_BYTES };

/* An input with the sums of each of its blocks. Whole blocks only. */
static struct {
    uint8_t bytes[LARGE_BYTES];
    struct mu_hash_sums of_block[LARGE_BLOCKS];
    struct mu_hash_sums sums;
    size_t blocks;
} large;

static struct mu_hash_sums sums_at(const uint8_t *block, uint64_t index) {
    struct mu_hash_sums sums = {0};
    run.kernel->add_blocks(&sums, block, 1, index, run.keys);
    return sums;
}

static void hash_large(size_t blocks) {
    large.blocks = blocks;
    large.sums = (struct mu_hash_sums){0};
    for (size_t i = 0; i < blocks; i++) {
        large.of_block[i] = sums_at(large.bytes + i * MU_HASH_BLOCK_BYTES, i);
        mu_hash_add_sums(&large.sums, &large.of_block[i]);
    }
}

static void replace(struct mu_hash_sums *sums, size_t block, const struct mu_hash_sums *by) {
    for (int lane = 0; lane < MU_HASH_LANES; lane++) {
        sums->s[lane] += by->s[lane] - large.of_block[block].s[lane];
        sums->t[lane] += by->t[lane] - large.of_block[block].t[lane];
    }
}

/* The hash of the large input after changes in one or two of its blocks. Now and then it is
 * computed in whole, so that this shortcut is not a second definition. */
static void emit_changed(size_t one, size_t other) {
    struct mu_hash_sums sums = large.sums;
    struct mu_hash_sums by = sums_at(large.bytes + one * MU_HASH_BLOCK_BYTES, one);
    replace(&sums, one, &by);
    if (other != one) {
        by = sums_at(large.bytes + other * MU_HASH_BLOCK_BYTES, other);
        replace(&sums, other, &by);
    }
    size_t bytes = large.blocks * MU_HASH_BLOCK_BYTES;
    struct mu_digest digest = mu_hash_close(&sums, bytes, run.keys->factor);
    if (run.count % 999983 == 0) {
        struct mu_digest whole = hash_of(large.bytes, bytes);
        if (whole.lo != digest.lo || whole.hi != digest.hi) {
            fprintf(stderr, "the shortcut does not give the hash\n");
            exit(2);
        }
    }
    emit(digest);
}

/* --- families of contents ----------------------------------------------------------------- */

static void one_bit(void) {
    enum { BLOCKS = (1 << 20) / MU_HASH_BLOCK_BYTES };
    for (int base = 0; base < 3; base++) {
        memset(large.bytes, base == 1 ? 0xFF : 0, LARGE_BYTES);
        if (base == 2) {
            fill_random(large.bytes, LARGE_BYTES, 11);
        }
        hash_large(BLOCKS);
        emit_changed(0, 0);
        for (size_t bit = 0; bit < BLOCKS * MU_HASH_BLOCK_BYTES * 8u; bit++) {
            size_t block = bit / 8 / MU_HASH_BLOCK_BYTES;
            large.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            emit_changed(block, block);
            large.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

static void two_bits(void) {
    uint8_t bytes[725] = {0};
    for (size_t i = 0; i < sizeof(bytes) * 8; i++) {
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        for (size_t j = 0; j < i; j++) {
            bytes[j / 8] ^= (uint8_t)(1u << j % 8);
            emit_hash(bytes, sizeof(bytes));
            bytes[j / 8] ^= (uint8_t)(1u << j % 8);
        }
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
    }
}

/* One bit in each of two neighbouring blocks. */
static void bits_of_two_blocks(void) {
    fill_random(large.bytes, LARGE_BYTES, 12);
    hash_large(2);
    for (size_t i = 0; i < 4096; i++) {
        large.bytes[i] ^= (uint8_t)(1u << i % 8);
        for (size_t j = 4096; j < 8192; j++) {
            large.bytes[j] ^= (uint8_t)(1u << i % 8);
            emit_changed(0, 1);
            large.bytes[j] ^= (uint8_t)(1u << i % 8);
        }
        large.bytes[i] ^= (uint8_t)(1u << i % 8);
    }
}

static void same_bit_in_three_words(void) {
    static const int bits[] = {0, 7, 15, 16, 22, 23, 30, 31};
    uint32_t words[256] = {0};
    for (size_t at = 0; at < 8; at++) {
        uint32_t bit = 1u << bits[at];
        for (int i = 0; i < 256; i++) {
            for (int j = 0; j < i; j++) {
                for (int k = 0; k < j; k++) {
                    words[i] = words[j] = words[k] = bit;
                    emit_hash(words, sizeof(words));
                    words[i] = words[j] = words[k] = 0;
                }
            }
        }
    }
}

/* Eight places that each have one of eight bfloat16 values; `apart` in 2-byte units. */
static void eight_values(size_t apart) {
    static const uint16_t values[] = {0x0000, 0x8000, 0x3F80, 0xBF80,
                                      0x4000, 0x3F00, 0x7FC0, 0x3C00};
    static uint16_t units[MU_HASH_BLOCK_BYTES / 2];
    memset(units, 0, sizeof(units));
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        for (size_t place = 0; place < 8; place++) {
            units[place * apart] = values[i >> place * 3 & 7];
        }
        emit_hash(units, apart * 16);
    }
}

static void eight_values_together(void) {
    eight_values(1);
}

static void eight_values_apart(void) {
    eight_values(MU_HASH_BLOCK_BYTES / 16);
}

/* Each of 25 blocks is all zeros or all ones (1.0f). */
static void constant_blocks(void) {
    enum { BLOCKS = 25 };
    struct mu_hash_sums sums[2][BLOCKS];
    float ones[MU_HASH_BLOCK_BYTES / 4], zeros[MU_HASH_BLOCK_BYTES / 4] = {0};
    for (size_t i = 0; i < MU_HASH_BLOCK_BYTES / 4; i++) {
        ones[i] = 1.0f;
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        sums[0][i] = sums_at((const uint8_t *)zeros, i);
        sums[1][i] = sums_at((const uint8_t *)ones, i);
    }
    for (uint32_t subset = 0; subset < 1u << BLOCKS; subset++) {
        struct mu_hash_sums whole = {0};
        for (size_t i = 0; i < BLOCKS; i++) {
            mu_hash_add_sums(&whole, &sums[subset >> i & 1][i]);
        }
        emit(mu_hash_close(&whole, (uint64_t)BLOCKS * MU_HASH_BLOCK_BYTES, run.keys->factor));
    }
}

static void constant_bytes(void) {
    static uint8_t bytes[65536];
    for (int value = 0; value < 256; value++) {
        memset(bytes, value, sizeof(bytes));
        for (size_t count = 1; count <= sizeof(bytes); count++) {
            emit_hash(bytes, count);
        }
    }
}

static void integer_ramps(void) {
    uint32_t words[64];
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        for (uint32_t at = 0; at < 64; at++) {
            words[at] = i / 4096 + i % 4096 * at;
        }
        emit_hash(words, sizeof(words));
    }
}

static void float_ramps(void) {
    float numbers[64];
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        for (uint32_t at = 0; at < 64; at++) {
            numbers[at] = (float)(i / 4096 + i % 4096 * at);
        }
        emit_hash(numbers, sizeof(numbers));
    }
}

/* Every pair of units changes places in an input that counts them. */
static void swap_units(size_t unit) {
    size_t bytes = UNITS * unit;
    memset(large.bytes, 0, LARGE_BYTES);
    for (uint32_t i = 0; i < UNITS; i++) {
        memcpy(large.bytes + i * unit, &i, unit < sizeof(i) ? unit : sizeof(i));
    }
    hash_large((bytes + MU_HASH_BLOCK_BYTES - 1) / MU_HASH_BLOCK_BYTES);
    for (size_t i = 0; i < UNITS; i++) {
        for (size_t j = 0; j < i; j++) {
            uint8_t kept[16], *one = large.bytes + i * unit, *other = large.bytes + j * unit;
            memcpy(kept, one, unit);
            memcpy(one, other, unit);
            memcpy(other, kept, unit);
            emit_changed(i * unit / MU_HASH_BLOCK_BYTES, j * unit / MU_HASH_BLOCK_BYTES);
            memcpy(other, one, unit);
            memcpy(one, kept, unit);
        }
    }
}

static void swap_2_bytes(void) {
    swap_units(2);
}

static void swap_4_bytes(void) {
    swap_units(4);
}

static void swap_8_bytes(void) {
    swap_units(8);
}

static void swap_16_bytes(void) {
    swap_units(16);
}

static void swap_blocks(void) {
    static struct mu_hash_block found[UNITS];
    memset(found, 0, sizeof(found));
    for (size_t i = 0; i < UNITS; i++) {
        uint32_t words[MU_HASH_BLOCK_WORDS];
        for (size_t at = 0; at < MU_HASH_BLOCK_WORDS; at++) {
            words[at] = (uint32_t)i;
        }
        memcpy(large.bytes + i * MU_HASH_BLOCK_BYTES, words, sizeof(words));
        run.kernel->add_quads(&found[i], (uint8_t *)words, MU_HASH_BLOCK_QUADS, run.keys->word);
    }
    hash_large(UNITS);
    for (size_t i = 0; i < UNITS; i++) {
        for (size_t j = 0; j < i; j++) {
            struct mu_hash_sums sums = large.sums, by[2] = {{{0}, {0}}, {{0}, {0}}};
            run.kernel->add_block(&by[0], &found[i], j);
            replace(&sums, j, &by[0]);
            run.kernel->add_block(&by[1], &found[j], i);
            replace(&sums, i, &by[1]);
            emit(mu_hash_close(&sums, LARGE_BYTES, run.keys->factor));
        }
    }
}

/* One word more by a power of two, another less by it. */
static void compensation(void) {
    static const int powers[] = {0, 1, 2, 3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23, 24, 27, 30};
    uint32_t words[MU_HASH_BLOCK_WORDS];
    fill_random(words, sizeof(words), 13);
    for (size_t at = 0; at < sizeof(powers) / sizeof(powers[0]); at++) {
        uint32_t power = 1u << powers[at];
        for (size_t i = 0; i < MU_HASH_BLOCK_WORDS; i++) {
            words[i] += power;
            for (size_t j = 0; j < MU_HASH_BLOCK_WORDS; j++) {
                if (j != i) {
                    words[j] -= power;
                    emit_hash(words, sizeof(words));
                    words[j] += power;
                }
            }
            words[i] -= power;
        }
    }
}

/* Made with the keys in hand: the first factor of every quad is zero, and two others vary. */
static void zero_factor(void) {
    uint32_t words[64] = {0};
    for (size_t quad = 0; quad < 16; quad++) {
        words[4 * quad] = 0u - run.keys->word[4 * quad];
    }
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        words[5] = i / 4096;
        words[7] = i % 4096;
        emit_hash(words, sizeof(words));
    }
}

/* One word of 16 KiB has a value. */
static void one_hot(void) {
    memset(large.bytes, 0, LARGE_BYTES);
    hash_large(4);
    for (size_t at = 0; at < 4096; at++) {
        for (uint32_t value = 1; value <= 4096; value++) {
            memcpy(large.bytes + at * 4, &value, 4);
            emit_changed(at * 4 / MU_HASH_BLOCK_BYTES, at * 4 / MU_HASH_BLOCK_BYTES);
        }
        memset(large.bytes + at * 4, 0, 4);
    }
}

static void reverse(uint32_t *words, int from, int to) {
    for (; from < to; from++, to--) {
        uint32_t kept = words[from];
        words[from] = words[to];
        words[to] = kept;
    }
}

/* The next in lexicographic order, of `count` different words. */
static void permute(uint32_t *words, int count) {
    int i = count - 2, j = count - 1;
    while (words[i] > words[i + 1]) {
        i--;
    }
    while (words[j] < words[i]) {
        j--;
    }
    uint32_t kept = words[i];
    words[i] = words[j];
    words[j] = kept;
    reverse(words, i + 1, count - 1);
}

static void permutations(void) {
    uint32_t words[11];
    for (uint32_t i = 0; i < 11; i++) {
        words[i] = i;
    }
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        emit_hash(words, sizeof(words));
        permute(words, 11);
    }
}

static void low_integers(void) {
    for (uint64_t i = 0; i < AT_LEAST; i++) {
        emit_hash(&i, sizeof(i));
    }
}

static void high_integers(void) {
    for (uint64_t i = 0; i < AT_LEAST; i++) {
        uint64_t value = i << 40;
        emit_hash(&value, sizeof(value));
    }
}

static void short_strings(void) {
    for (size_t count = 0; count < 4; count++) {
        for (uint32_t i = 0; i < 1u << 8 * count; i++) {
            emit_hash(&i, count);
        }
    }
}

/* A row of four words, sixteen times. */
static void equal_rows(void) {
    uint32_t rows[16][4];
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        for (size_t row = 0; row < 16; row++) {
            for (int at = 0; at < 4; at++) {
                rows[row][at] = i >> at * 6 & 63;
            }
        }
        emit_hash(rows, sizeof(rows));
    }
}

static void shifted_words(void) {
    uint32_t base[64], words[64];
    fill_random(base, sizeof(base), 14);
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        for (size_t at = 0; at < 64; at++) {
            words[at] = base[at] + i;
        }
        emit_hash(words, sizeof(words));
    }
}

/* One bit of each of 24 words, or not; `apart` in words. */
static void subsets_of_bits(uint32_t bit, size_t apart) {
    uint32_t words[MU_HASH_BLOCK_WORDS];
    size_t count = 24 * apart;
    fill_random(words, sizeof(words), 15);
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        emit_hash(words, count * 4);
        words[(size_t)__builtin_ctz(i + 1) % 24 * apart] ^= bit; /* a Gray code */
    }
}

static void signs(void) {
    subsets_of_bits(1u << 31, 1);
}

static void signs_of_a_column(void) {
    subsets_of_bits(1u << 31, 4);
}

static void lowest_bits(void) {
    subsets_of_bits(1, 1);
}

/* --- families of combined digests --------------------------------------------------------- */

static void emit_combined(const struct mu_digest *content, int dtype, int ndim,
                          const int64_t *shape) {
    struct mu_digest combined;
    mu_tensor_hash_combine(content, dtype, ndim, shape, &combined);
    emit(combined);
}

static void combined_low_dims(void) {
    struct mu_digest content = hash_of("", 0);
    for (int64_t i = 0; i < AT_LEAST; i++) {
        int64_t shape[] = {i >> 16, i >> 8 & 255, i & 255};
        emit_combined(&content, MU_DTYPE_FLOAT32, 3, shape);
    }
}

static void combined_high_dims(void) {
    struct mu_digest content = hash_of("", 0);
    for (int64_t i = 0; i < AT_LEAST; i++) {
        int64_t shape[] = {(i >> 12) << 50, (i & 4095) << 20};
        emit_combined(&content, MU_DTYPE_BFLOAT16, 2, shape);
    }
}

/* All dtypes, 0 to 8 dimensions of five sizes, zero among them, and two contents that differ in
 * one bit. */
static void combined_dtypes(void) {
    static const int64_t sizes[] = {0, 1, 2, 3, 256};
    for (int bit = 0; bit < 2; bit++) {
        uint8_t byte = (uint8_t)bit;
        struct mu_digest content = hash_of(&byte, 1);
        for (int dtype = 0; dtype < MU_DTYPE_COUNT; dtype++) {
            for (int ndim = 0, all = 1; ndim <= 8; ndim++, all *= 5) {
                for (int i = 0; i < all; i++) {
                    int64_t shape[8];
                    for (int dim = 0, rest = i; dim < ndim; dim++, rest /= 5) {
                        shape[dim] = sizes[rest % 5];
                    }
                    emit_combined(&content, dtype, ndim, shape);
                }
            }
        }
    }
}

/* The same content in shapes that are permutations of each other. */
static void combined_permutations(void) {
    struct mu_digest content = hash_of("permuted", 8);
    uint32_t order[11];
    int64_t shape[11];
    for (uint32_t i = 0; i < 11; i++) {
        order[i] = i;
    }
    for (uint32_t i = 0; i < AT_LEAST; i++) {
        for (int dim = 0; dim < 11; dim++) {
            shape[dim] = (int64_t)1 << order[dim];
        }
        emit_combined(&content, MU_DTYPE_INT8, 11, shape);
        permute(order, 11);
    }
}

/* One content in shapes of 2^14 elements in 18 dimensions: the factors of two are shared out. */
static void combined_reshapes(void) {
    struct mu_digest content = hash_of("reshaped", 8);
    int64_t shape[18];
    for (uint32_t walls = 0; walls < 1u << 31 && run.count < AT_LEAST; walls++) {
        if (__builtin_popcount(walls) != 17) {
            continue;
        }
        int dim = 0;
        shape[0] = 1;
        for (int bit = 0; bit < 31; bit++) {
            if (walls >> bit & 1) {
                shape[++dim] = 1;
            } else {
                shape[dim] *= 2;
            }
        }
        emit_combined(&content, MU_DTYPE_FLOAT16, 18, shape);
    }
}

/* Contents that differ in one bit, under one header. */
static void combined_one_bit(void) {
    static const int64_t shape[] = {1024, 2048};
    uint8_t bytes[8192] = {0};
    for (uint16_t base = 0; base < 257; base++) {
        memcpy(bytes + sizeof(bytes) - sizeof(base), &base, sizeof(base));
        for (size_t bit = 0; bit < (sizeof(bytes) - sizeof(base)) * 8; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            struct mu_digest content = hash_of(bytes, sizeof(bytes));
            emit_combined(&content, MU_DTYPE_FLOAT32, 2, shape);
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

/* 4160 contents that differ in a bit, each under 4160 shapes. */
static void combined_both(void) {
    enum { SIDE = 4160 };
    static struct mu_digest contents[SIDE];
    uint8_t bytes[SIDE / 8] = {0};
    for (size_t bit = 0; bit < SIDE; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        contents[bit] = hash_of(bytes, sizeof(bytes));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (int64_t size = 0; size < SIDE; size++) {
        for (size_t i = 0; i < SIDE; i++) {
            emit_combined(&contents[i], MU_DTYPE_UINT8, 1, &size);
        }
    }
}

/* Contents that no hash would give: halves that count. The worst that the join can meet. */
static void combined_counters(void) {
    for (uint64_t i = 0; i < AT_LEAST; i++) {
        static const int64_t shape[] = {7};
        struct mu_digest content = {.lo = i >> 12, .hi = i & 4095};
        emit_combined(&content, MU_DTYPE_BOOL, 1, shape);
    }
}

/* --- the verdict -------------------------------------------------------------------------- */

/* Of the lowest `bits` of run.values, by counting sort of 11 bits at a time. */
static void sort_values(int bits) {
    static size_t starts[2048];
    for (int shift = 0; shift < bits; shift += 11) {
        memset(starts, 0, sizeof(starts));
        for (size_t i = 0; i < run.count; i++) {
            starts[run.values[i] >> shift & 2047]++;
        }
        size_t start = 0;
        for (size_t digit = 0; digit < 2048; digit++) {
            size_t count = starts[digit];
            starts[digit] = start;
            start += count;
        }
        for (size_t i = 0; i < run.count; i++) {
            run.spare[starts[run.values[i] >> shift & 2047]++] = run.values[i];
        }
        uint64_t *kept = run.values;
        run.values = run.spare;
        run.spare = kept;
    }
}

/* Pairs of equal values. */
static double equal_pairs(int bits) {
    double pairs = 0;
    sort_values(bits);
    for (size_t i = 1, equal = 1; i <= run.count; i++, equal++) {
        if (i == run.count || run.values[i] != run.values[i - 1]) {
            pairs += (double)equal * (double)(equal - 1) / 2;
            equal = 0;
        }
    }
    return pairs;
}

static uint32_t word_of(const struct mu_digest *digest, int word) {
    switch (word) {
    case 0:
        return (uint32_t)digest->lo;
    case 1:
        return (uint32_t)(digest->lo >> 32);
    case 2:
        return (uint32_t)digest->hi;
    case 3:
        return (uint32_t)(digest->hi >> 32);
    case 4:
        return (uint32_t)(digest->lo & 0xFFFF) | (uint32_t)digest->hi << 16;
    default:
        return (uint32_t)(digest->lo >> 48) | (uint32_t)(digest->hi >> 48) << 16;
    }
}

/* How far the pairs that share a word are from what chance has, in standard deviations. */
static double deviation_of(int word) {
    double expected = (double)run.count * (double)(run.count - 1) / 2 / 4294967296.0;
    for (size_t i = 0; i < run.count; i++) {
        run.values[i] = word_of(&run.digests[i], word);
    }
    return (equal_pairs(32) - expected) / sqrt(expected);
}

static double half_pairs(bool high) {
    for (size_t i = 0; i < run.count; i++) {
        run.values[i] = high ? run.digests[i].hi : run.digests[i].lo;
    }
    return equal_pairs(64);
}

struct verdict {
    double pairs; /* that share a half */
    double worst; /* deviation of a word */
};

static struct verdict judge(const char *name) {
    struct verdict verdict = {.pairs = half_pairs(false) + half_pairs(true)};
    printf("%-44s %9zu %6.0f  ", name, run.count, verdict.pairs);
    for (int word = 0; word < WORDS; word++) {
        double deviation = deviation_of(word);
        verdict.worst = fmax(verdict.worst, fabs(deviation));
        printf(" %+5.1f", deviation);
    }
    return verdict;
}

/* A hash that everyone knows to be weak, on the permutations: the test must see it. */
static int control(void) {
    uint32_t words[11];
    for (uint32_t i = 0; i < 11; i++) {
        words[i] = i * i;
    }
    for (uint32_t i = 0; i < 100000; i++) {
        struct mu_digest sum = {0};
        for (uint32_t at = 0; at < 11; at++) {
            sum.lo += words[at] * (uint64_t)(at < 9 ? at : 9);
            sum.hi ^= words[at];
        }
        emit(sum);
        permute(words, 11);
    }
    bool seen = half_pairs(false) > 0 && deviation_of(0) > 4;
    printf("%-44s %s\n", "control: a weak hash", seen ? "seen" : "NOT SEEN");
    return seen ? 0 : 1;
}

static const struct family {
    const char *name;
    void (*emit_all)(void);
} families[] = {
    {"one bit of 1 MiB, three bases", one_bit},
    {"two bits of 725 zero bytes", two_bits},
    {"a bit in each of two blocks", bits_of_two_blocks},
    {"the same bit in 3 of 256 words", same_bit_in_three_words},
    {"8 bfloat16 values in 8 places", eight_values_together},
    {"the same, 512 bytes apart", eight_values_apart},
    {"subsets of 25 constant blocks", constant_blocks},
    {"constant bytes, lengths to 64 KiB", constant_bytes},
    {"integer ramps", integer_ramps},
    {"float32 ramps", float_ramps},
    {"swaps of 2 bytes", swap_2_bytes},
    {"swaps of 4 bytes", swap_4_bytes},
    {"swaps of 8 bytes", swap_8_bytes},
    {"swaps of 16 bytes", swap_16_bytes},
    {"swaps of blocks", swap_blocks},
    {"+2^m here, -2^m there", compensation},
    {"first factors zero, two others vary", zero_factor},
    {"one word of 16 KiB has a value", one_hot},
    {"permutations of 11 words", permutations},
    {"one int64, low bits", low_integers},
    {"one int64, high bits", high_integers},
    {"all strings up to 3 bytes", short_strings},
    {"equal rows of low entropy", equal_rows},
    {"one number added to all words", shifted_words},
    {"signs of 24 neighbours", signs},
    {"signs of a column", signs_of_a_column},
    {"lowest bits of 24 neighbours", lowest_bits},
    {"combined: 3 low dimensions", combined_low_dims},
    {"combined: 2 high dimensions", combined_high_dims},
    {"combined: dtypes, 0 to 8 dimensions", combined_dtypes},
    {"combined: permuted dimensions", combined_permutations},
    {"combined: reshapes of one content", combined_reshapes},
    {"combined: one bit of the content", combined_one_bit},
    {"combined: 4160 contents in 4160 shapes", combined_both},
    {"combined: contents that count", combined_counters},
};

static int test_family(const struct family *family) {
    time_t began = time(NULL);
    run.count = 0;
    family->emit_all();
    struct verdict verdict = judge(family->name);
    bool passed = run.count >= AT_LEAST && verdict.pairs == 0 && verdict.worst < 4;
    printf("  %s (%d s)\n", passed ? "passed" : "FAILED", (int)(time(NULL) - began));
    fflush(stdout);
    return passed ? 0 : 1;
}

int main(int argc, char **argv) {
    run.digests = malloc(sizeof(*run.digests) * ROOM);
    run.values = malloc(sizeof(*run.values) * ROOM);
    run.spare = malloc(sizeof(*run.spare) * ROOM);
    if (run.digests == NULL || run.values == NULL || run.spare == NULL) {
        fprintf(stderr, "1 GiB of memory is needed\n");
        return 2;
    }
    run.kernel = mu_hash_kernel_best();
    run.keys = mu_hash_keys();
    printf("%-44s %9s %6s   deviation of pairs sharing a 32-bit word\n", "family", "inputs",
           "pairs");
    int failed = control();
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (argc < 2 || strstr(families[i].name, argv[1]) != NULL) {
            failed += test_family(&families[i]);
        }
    }
    printf("%d failed\n", failed);
    return failed != 0;
}
