#include "cuda/nvtx.h"

#ifdef MU_HAVE_NVTX

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Twice the number of ranges, so that a probe ends soon; a power of two. */
enum { SLOT_COUNT = 2 * MU_NVTX_RANGES_MAX };

struct mu_nvtx_range {
    uint64_t hash;
    struct mu_nvtx_key key; /* its three texts are owned, in one block behind the struct */
    nvtxDomainHandle_t domain;
    nvtxEventAttributes_t attributes; /* names the registered string */
};

struct named_domain {
    char *name; /* owned */
    nvtxDomainHandle_t handle;
};

/* NVTX counts categories by domain; their number is the place in this table plus one. */
struct named_category {
    char *name; /* owned */
    nvtxDomainHandle_t domain;
};

/* The slots do not use base/hash_table.h: threads search them without a lock while another one
 * adds, so a slot is one atomic pointer to the range and its key. */
struct mu_nvtx {
    _Atomic(struct mu_nvtx_range *) slots[SLOT_COUNT]; /* owned; entries are never taken out */
    struct mu_nvtx_range *other;                       /* owned: used when a table is full */
    atomic_uint_fast64_t overflowed;
    pthread_mutex_t add_lock; /* guards all below, and stores into slots */
    int range_count;
    int domain_count;
    int category_count;
    struct named_domain domains[MU_NVTX_DOMAINS_MAX];
    struct named_category categories[MU_NVTX_CATEGORIES_MAX];
};

bool mu_nvtx_built(void) {
    return true;
}

static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u; /* FNV-1a, 64 bits */
    }
    return (hash ^ 0xff) * 0x100000001b3u; /* a byte that UTF-8 lacks parts the texts */
}

static uint64_t hash_key(const struct mu_nvtx_key *key) {
    uint64_t hash = 0xcbf29ce484222325u ^ key->argb;
    hash = hash_bytes(hash, key->name, key->name_length);
    hash = hash_bytes(hash, key->domain, key->domain_length);
    return hash_bytes(hash, key->category, key->category_length);
}

static bool same_text(const char *left, size_t left_length, const char *right,
                      size_t right_length) {
    if (left == NULL || right == NULL) {
        return left == right;
    }
    return left_length == right_length && memcmp(left, right, left_length) == 0;
}

static bool same_key(const struct mu_nvtx_key *left, const struct mu_nvtx_key *right) {
    return left->argb == right->argb &&
           same_text(left->name, left->name_length, right->name, right->name_length) &&
           same_text(left->domain, left->domain_length, right->domain, right->domain_length) &&
           same_text(left->category, left->category_length, right->category,
                     right->category_length);
}

/* NVTX takes texts that end in NUL: cut at the first one, and at the bound on a character. */
static size_t usable_length(const char *text, size_t length) {
    if (text == NULL) {
        return 0;
    }
    return mu_utf8_cut(text, strnlen(text, length), MU_NVTX_NAME_MAX);
}

static struct mu_nvtx_key usable_key(const struct mu_nvtx_key *key) {
    struct mu_nvtx_key usable = *key;
    usable.name_length = usable_length(key->name, key->name_length);
    usable.domain_length = usable_length(key->domain, key->domain_length);
    usable.category_length = usable_length(key->category, key->category_length);
    if (usable.domain_length == 0) {
        usable.domain = NULL;
    }
    if (usable.category_length == 0) {
        usable.category = NULL;
    }
    return usable;
}

static char *copy_text(char **at, const char *text, size_t length) {
    if (text == NULL) {
        return NULL;
    }
    char *copy = *at;
    memcpy(copy, text, length);
    copy[length] = '\0';
    *at += length + 1;
    return copy;
}

static struct mu_nvtx_range *range_new(const struct mu_nvtx_key *key, uint64_t hash) {
    size_t texts = key->name_length + key->domain_length + key->category_length + 3;
    struct mu_nvtx_range *range = calloc(1, sizeof(*range) + texts);
    if (range == NULL) {
        return NULL;
    }
    char *at = (char *)(range + 1);
    range->hash = hash;
    range->key = *key;
    range->key.name = copy_text(&at, key->name, key->name_length);
    range->key.domain = copy_text(&at, key->domain, key->domain_length);
    range->key.category = copy_text(&at, key->category, key->category_length);
    return range;
}

/* NULL, the default domain, when there is no name, no place or no memory for one more. */
static nvtxDomainHandle_t domain_get_lock_held(struct mu_nvtx *nvtx, const char *name) {
    if (name == NULL) {
        return NULL;
    }
    for (int i = 0; i < nvtx->domain_count; i++) {
        if (strcmp(nvtx->domains[i].name, name) == 0) {
            return nvtx->domains[i].handle;
        }
    }
    char *copy = nvtx->domain_count < MU_NVTX_DOMAINS_MAX ? strdup(name) : NULL;
    if (copy == NULL) {
        atomic_fetch_add(&nvtx->overflowed, 1);
        return NULL;
    }
    struct named_domain *domain = &nvtx->domains[nvtx->domain_count++];
    domain->name = copy;
    domain->handle = nvtxDomainCreateA(name);
    return domain->handle;
}

/* 0, which is no category, when there is no name, no place or no memory for one more. */
static uint32_t category_get_lock_held(struct mu_nvtx *nvtx, nvtxDomainHandle_t domain,
                                       const char *name) {
    if (name == NULL) {
        return 0;
    }
    for (int i = 0; i < nvtx->category_count; i++) {
        const struct named_category *category = &nvtx->categories[i];
        if (category->domain == domain && strcmp(category->name, name) == 0) {
            return (uint32_t)i + 1;
        }
    }
    char *copy = nvtx->category_count < MU_NVTX_CATEGORIES_MAX ? strdup(name) : NULL;
    if (copy == NULL) {
        atomic_fetch_add(&nvtx->overflowed, 1);
        return 0;
    }
    struct named_category *category = &nvtx->categories[nvtx->category_count++];
    category->name = copy;
    category->domain = domain;
    uint32_t number = (uint32_t)nvtx->category_count;
    nvtxDomainNameCategoryA(domain, number, name);
    return number;
}

static void range_fill_lock_held(struct mu_nvtx *nvtx, struct mu_nvtx_range *range) {
    range->domain = domain_get_lock_held(nvtx, range->key.domain);
    nvtxEventAttributes_t *attributes = &range->attributes;
    attributes->version = NVTX_VERSION;
    attributes->size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes->category = category_get_lock_held(nvtx, range->domain, range->key.category);
    attributes->colorType = NVTX_COLOR_ARGB;
    attributes->color = range->key.argb;
    attributes->messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes->message.registered = nvtxDomainRegisterStringA(range->domain, range->key.name);
    if (attributes->message.registered == NULL) { /* a tool without registered strings */
        attributes->messageType = NVTX_MESSAGE_TYPE_ASCII;
        attributes->message.ascii = range->key.name;
    }
}

/* The slot that holds the key, or the free one where it belongs. The table is at most half full,
 * so there is one. */
static size_t slot_of(struct mu_nvtx *nvtx, const struct mu_nvtx_key *key, uint64_t hash,
                      struct mu_nvtx_range **found) {
    size_t slot = (size_t)(hash ^ hash >> 32) & (SLOT_COUNT - 1);
    for (;;) {
        struct mu_nvtx_range *range =
            atomic_load_explicit(&nvtx->slots[slot], memory_order_acquire);
        if (range == NULL || (range->hash == hash && same_key(&range->key, key))) {
            *found = range;
            return slot;
        }
        slot = (slot + 1) & (SLOT_COUNT - 1);
    }
}

static const struct mu_nvtx_range *
range_add_lock_held(struct mu_nvtx *nvtx, const struct mu_nvtx_key *key, uint64_t hash) {
    struct mu_nvtx_range *range;
    size_t slot = slot_of(nvtx, key, hash, &range); /* another thread may have added it */
    if (range != NULL) {
        return range;
    }
    range = nvtx->range_count < MU_NVTX_RANGES_MAX ? range_new(key, hash) : NULL;
    if (range == NULL) {
        atomic_fetch_add(&nvtx->overflowed, 1);
        return nvtx->other;
    }
    range_fill_lock_held(nvtx, range);
    nvtx->range_count++;
    atomic_store_explicit(&nvtx->slots[slot], range, memory_order_release);
    return range;
}

const struct mu_nvtx_range *mu_nvtx_range_get(struct mu_nvtx *nvtx,
                                              const struct mu_nvtx_key *wanted) {
    if (nvtx == NULL) {
        return NULL;
    }
    struct mu_nvtx_key key = usable_key(wanted);
    uint64_t hash = hash_key(&key);
    struct mu_nvtx_range *known;
    slot_of(nvtx, &key, hash, &known);
    if (known != NULL) {
        return known;
    }
    pthread_mutex_lock(&nvtx->add_lock);
    const struct mu_nvtx_range *range = range_add_lock_held(nvtx, &key, hash);
    pthread_mutex_unlock(&nvtx->add_lock);
    return range;
}

/* A tool gives handles to domains; without one the pointer is NULL. The probe's name is ours, and
 * the tool may show it as a domain that stays empty. */
static bool tool_listens(void) {
    nvtxInitialize(NULL);
    return nvtxDomainCreateA("my_utils") != NULL;
}

int mu_nvtx_create(struct mu_nvtx **out, struct mu_error *err) {
    *out = NULL;
    if (!tool_listens()) {
        return MU_OK;
    }
    const struct mu_nvtx_key key = {.name = "(other)", .name_length = 7, .argb = 0xff808080u};
    struct mu_nvtx *nvtx = calloc(1, sizeof(*nvtx));
    struct mu_nvtx_range *other = range_new(&key, 0);
    if (nvtx == NULL || other == NULL || pthread_mutex_init(&nvtx->add_lock, NULL) != 0) {
        free(nvtx);
        free(other);
        return mu_error_no_memory(err, "the tables of NVTX");
    }
    range_fill_lock_held(nvtx, other);
    nvtx->other = other;
    *out = nvtx;
    return MU_OK;
}

void mu_nvtx_free(struct mu_nvtx *nvtx) {
    if (nvtx == NULL) {
        return;
    }
    for (size_t i = 0; i < SLOT_COUNT; i++) {
        free(atomic_load_explicit(&nvtx->slots[i], memory_order_relaxed));
    }
    for (int i = 0; i < nvtx->domain_count; i++) {
        free(nvtx->domains[i].name);
    }
    for (int i = 0; i < nvtx->category_count; i++) {
        free(nvtx->categories[i].name);
    }
    free(nvtx->other);
    pthread_mutex_destroy(&nvtx->add_lock);
    free(nvtx);
}

void mu_nvtx_push(const struct mu_nvtx_range *range) {
    if (range != NULL) {
        nvtxDomainRangePushEx(range->domain, &range->attributes);
    }
}

void mu_nvtx_pop(const struct mu_nvtx_range *range) {
    if (range != NULL) {
        nvtxDomainRangePop(range->domain);
    }
}

uint64_t mu_nvtx_start(const struct mu_nvtx *nvtx, const char *name, uint32_t argb) {
    const nvtxEventAttributes_t attributes = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .colorType = NVTX_COLOR_ARGB,
        .color = argb,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message = {.ascii = name},
    };
    return nvtx == NULL ? 0 : nvtxDomainRangeStartEx(NULL, &attributes);
}

void mu_nvtx_end(const struct mu_nvtx *nvtx, uint64_t range) {
    if (nvtx != NULL) {
        nvtxDomainRangeEnd(NULL, range);
    }
}

uint64_t mu_nvtx_overflowed(const struct mu_nvtx *nvtx) {
    return nvtx == NULL ? 0 : atomic_load(&nvtx->overflowed);
}

#else /* without the headers nothing is ever attached, so nothing below has work to do */

bool mu_nvtx_built(void) {
    return false;
}

int mu_nvtx_create(struct mu_nvtx **out, struct mu_error *err) {
    (void)err;
    *out = NULL;
    return MU_OK;
}

void mu_nvtx_free(struct mu_nvtx *nvtx) {
    (void)nvtx;
}

const struct mu_nvtx_range *mu_nvtx_range_get(struct mu_nvtx *nvtx,
                                              const struct mu_nvtx_key *wanted) {
    (void)nvtx;
    (void)wanted;
    return NULL;
}

void mu_nvtx_push(const struct mu_nvtx_range *range) {
    (void)range;
}

void mu_nvtx_pop(const struct mu_nvtx_range *range) {
    (void)range;
}

uint64_t mu_nvtx_start(const struct mu_nvtx *nvtx, const char *name, uint32_t argb) {
    (void)nvtx;
    (void)name;
    (void)argb;
    return 0;
}

void mu_nvtx_end(const struct mu_nvtx *nvtx, uint64_t range) {
    (void)nvtx;
    (void)range;
}

uint64_t mu_nvtx_overflowed(const struct mu_nvtx *nvtx) {
    (void)nvtx;
    return 0;
}

#endif
