/* NVTX: the stages of a timer as ranges in NVIDIA's tools (Nsight Systems, and what reads NVTX).
 *
 * A tool attaches when the process starts (NVTX_INJECTION64_PATH), so mu_nvtx_create decides once
 * whether there is one. It gives NULL when there is none. NULL is a valid argument everywhere below
 * and means "do nothing": a hot path pays one branch on mu_nvtx_attached. Built without the NVTX
 * headers, nothing is ever attached.
 *
 * A range is looked up once for each (domain, name, colour, category) and may be kept: it lives as
 * long as its mu_nvtx. Lookups take no lock when the range is known. Push and pop act on the
 * calling thread's stack in the range's domain, as NVTX has it.
 *
 * Bounds: MU_NVTX_RANGES_MAX ranges, MU_NVTX_DOMAINS_MAX domains, MU_NVTX_CATEGORIES_MAX
 * categories. Further names go into one range named "(other)", further domains into the default
 * domain, and further categories become no category. All of them are counted.
 */
#ifndef MU_NVTX_H
#define MU_NVTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    MU_NVTX_RANGES_MAX = 4096,
    MU_NVTX_DOMAINS_MAX = 64,
    MU_NVTX_CATEGORIES_MAX = 256,
    MU_NVTX_NAME_MAX = 255, /* bytes; longer names are cut on a character */
};

struct mu_nvtx;
struct mu_nvtx_range;

/* The key of a range. The bytes are borrowed for the call. */
struct mu_nvtx_key {
    const char *name;
    size_t name_length;
    const char *domain; /* NULL: the default domain, where torch.cuda.nvtx puts its ranges too */
    size_t domain_length;
    const char *category; /* NULL: none */
    size_t category_length;
    uint32_t argb;
};

/* When no tool listens, `*out` is NULL and the result is MU_OK. */
MU_MUST_CHECK int mu_nvtx_create(struct mu_nvtx **out, struct mu_error *err);

/* Frees what the tables hold. The tool keeps its domains: other code may use the same names. */
void mu_nvtx_free(struct mu_nvtx *nvtx);

static inline bool mu_nvtx_attached(const struct mu_nvtx *nvtx) {
    return nvtx != NULL;
}

/* True when the NVTX headers were there at build time. */
bool mu_nvtx_built(void);

/* Never NULL when attached; NULL when not. */
const struct mu_nvtx_range *mu_nvtx_range_get(struct mu_nvtx *nvtx,
                                              const struct mu_nvtx_key *wanted);

void mu_nvtx_push(const struct mu_nvtx_range *range);
void mu_nvtx_pop(const struct mu_nvtx_range *range);

/* A range of the default domain that another thread may end; 0 when no tool listens. `name` ends in
 * NUL and is borrowed for the call. It is neither looked up nor kept. */
uint64_t mu_nvtx_start(const struct mu_nvtx *nvtx, const char *name, uint32_t argb);
void mu_nvtx_end(const struct mu_nvtx *nvtx, uint64_t range);

/* How many lookups met a full table. */
uint64_t mu_nvtx_overflowed(const struct mu_nvtx *nvtx);

#endif
