#include "hash/tensor_hash_kernel.h"

#include <string.h>

#include "base/cpu.h"

/* --- any processor ------------------------------------------------------------------------ */

static void add_quads(struct mu_hash_block *block, const uint8_t *bytes, size_t quads,
                      const uint32_t *key) {
    struct mu_hash_block local = *block;
    for (size_t i = 0; i < quads; i++) {
        uint32_t words[MU_HASH_QUAD_WORDS];
        memcpy(words, bytes + i * MU_HASH_QUAD_BYTES, sizeof(words));
        mu_hash_add_quad(&local, words, key + i * MU_HASH_QUAD_WORDS);
    }
    *block = local;
}

static void add_block(struct mu_hash_sums *sums, const struct mu_hash_block *block,
                      uint64_t index) {
    uint64_t factor[MU_HASH_BLOCK_FACTORS];
    for (int place = 0; place < MU_HASH_BLOCK_FACTORS; place++) {
        factor[place] = mu_hash_block_factor(index, place);
    }
    mu_hash_add_block(sums, block, factor, index);
}

static void add_blocks(struct mu_hash_sums *sums, const uint8_t *bytes, size_t blocks,
                       uint64_t index, const struct mu_hash_keys *keys) {
    for (size_t i = 0; i < blocks; i++) {
        struct mu_hash_block block = {0};
        add_quads(&block, bytes + i * MU_HASH_BLOCK_BYTES, MU_HASH_BLOCK_QUADS, keys->word);
        add_block(sums, &block, index + i);
    }
}

const struct mu_hash_kernel mu_hash_kernel_scalar = {
    .name = "scalar", .add_quads = add_quads, .add_block = add_block, .add_blocks = add_blocks};

/* --- which one, and the keys -------------------------------------------------------------- */

static struct {
    struct mu_hash_keys keys;
    const struct mu_hash_kernel *best;
} loaded;

const struct mu_hash_kernel *mu_hash_kernel_by_name(const char *name) {
    if (strcmp(name, "scalar") == 0) {
        return &mu_hash_kernel_scalar;
    }
#if defined(__x86_64__)
    if (strcmp(name, "avx2") == 0 && mu_cpu_has(MU_CPU_AVX2)) {
        return &mu_hash_kernel_avx2;
    }
    if (strcmp(name, "avx512") == 0 && mu_cpu_has(MU_CPU_AVX512)) {
        return &mu_hash_kernel_avx512;
    }
#elif defined(__aarch64__)
    if (strcmp(name, "neon") == 0 && mu_cpu_has(MU_CPU_NEON)) {
        return &mu_hash_kernel_neon;
    }
#endif
    return NULL;
}

/* Runs when the library is loaded, before any other call, so the accessors need no lock. */
__attribute__((constructor)) static void load(void) {
    static const char *const fastest_first[] = {"avx512", "avx2", "neon", "scalar"};
    for (size_t i = 0; loaded.best == NULL; i++) {
        loaded.best = mu_hash_kernel_by_name(fastest_first[i]);
    }
    mu_hash_fill_keys(&loaded.keys);
}

const struct mu_hash_kernel *mu_hash_kernel_best(void) {
    return loaded.best;
}

const struct mu_hash_keys *mu_hash_keys(void) {
    return &loaded.keys;
}
