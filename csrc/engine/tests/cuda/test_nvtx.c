/* NVTX with a tool attached: the tool is linked in, as NVTX allows for a static injection. */
#include "tests/fakes/nvtx_injection.c" /* NOLINT(bugprone-suspicious-include): a test of its own */

#include <pthread.h>
#include <string.h>

#include "cuda/nvtx.h"
#include "tests/check.h"

int (*InitializeInjectionNvtx2_fnptr)(const void *(*)(uint32_t)) = InitializeInjectionNvtx2;

static char heard[1 << 20];

static const char *read_log(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, heard, sizeof(heard) - 1);
    heard[length < 0 ? 0 : length] = '\0';
    if (file >= 0) {
        close(file);
    }
    return heard;
}

static int count(const char *text, const char *wanted) {
    int found = 0;
    while ((text = strstr(text, wanted)) != NULL) {
        found++;
        text++;
    }
    return found;
}

static struct mu_nvtx_key key_of(const char *name, const char *domain, const char *category,
                                 uint32_t argb) {
    return (struct mu_nvtx_key){
        .name = name,
        .name_length = strlen(name),
        .domain = domain,
        .domain_length = domain == NULL ? 0 : strlen(domain),
        .category = category,
        .category_length = category == NULL ? 0 : strlen(category),
        .argb = argb,
    };
}

static void test_ranges(struct mu_nvtx *nvtx, const char *path) {
    struct mu_nvtx_key forward = key_of("forward", "train", "compute", 0xff112233);
    const struct mu_nvtx_range *range = mu_nvtx_range_get(nvtx, &forward);
    struct mu_nvtx_key again = key_of("forward", "train", "compute", 0xff112233);
    CHECK(mu_nvtx_range_get(nvtx, &again) == range);
    struct mu_nvtx_key plain = key_of("forward", NULL, NULL, 0xff112233);
    const struct mu_nvtx_range *other = mu_nvtx_range_get(nvtx, &plain);
    CHECK(other != range);

    mu_nvtx_push(range);
    mu_nvtx_push(other);
    mu_nvtx_pop(other);
    mu_nvtx_pop(range);
    const char *log = read_log(path);
    CHECK_INT(count(log, "domain\tname=train\n"), 1);
    CHECK_INT(count(log, "string\tdomain=train\ttext=forward\n"), 1);
    CHECK_INT(count(log, "category\tdomain=train\tnumber=1\tname=compute\n"), 1);
    CHECK_INT(count(log, "push\tdomain=train\tmessage=forward\tregistered=1\tcolor=ff112233\t"
                         "category=1\t"),
              1);
    CHECK_INT(count(log, "push\tdomain=\tmessage=forward\tregistered=1\tcolor=ff112233\t"
                         "category=0\t"),
              1);
    CHECK_INT(count(log, "pop\tdomain=train\t"), 1);
    CHECK_INT(count(log, "pop\tdomain=\t"), 1);
}

static void test_long_names(struct mu_nvtx *nvtx, const char *path) {
    char name[300];
    memset(name, 'x', sizeof(name));
    memcpy(name + 254, "\xc3\xa9", 2); /* é would be cut in two */
    struct mu_nvtx_key key = {.name = name, .name_length = sizeof(name), .argb = 1};
    mu_nvtx_range_get(nvtx, &key);
    CHECK(count(read_log(path), "text=xxx") == 1);
    const char *text = strstr(heard, "text=xxx");
    CHECK_INT(text == NULL ? 0 : strcspn(text, "\n"), 5 + 254);
}

struct worker {
    pthread_t thread;
    struct mu_nvtx *nvtx;
    const struct mu_nvtx_range *ranges[64];
};

static void *look_up(void *arg) {
    struct worker *worker = arg;
    for (int i = 0; i < 64; i++) {
        char name[32];
        snprintf(name, sizeof(name), "shared %d", i);
        struct mu_nvtx_key key = key_of(name, "threads", NULL, 5);
        worker->ranges[i] = mu_nvtx_range_get(worker->nvtx, &key);
    }
    return NULL;
}

static void test_threads(struct mu_nvtx *nvtx, const char *path) {
    struct worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i].nvtx = nvtx;
        CHECK_INT(pthread_create(&workers[i].thread, NULL, look_up, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    for (int i = 1; i < 4; i++) {
        CHECK(memcmp(workers[i].ranges, workers[0].ranges, sizeof(workers[0].ranges)) == 0);
    }
    CHECK_INT(count(read_log(path), "text=shared "), 64);
}

static void test_bounds(struct mu_nvtx *nvtx) {
    char name[32];
    for (int i = 0; i < 2 * MU_NVTX_DOMAINS_MAX; i++) {
        snprintf(name, sizeof(name), "domain %d", i);
        struct mu_nvtx_key key = key_of("x", name, NULL, 0);
        CHECK(mu_nvtx_range_get(nvtx, &key) != NULL);
    }
    CHECK(mu_nvtx_overflowed(nvtx) >= MU_NVTX_DOMAINS_MAX);
    const struct mu_nvtx_range *last = NULL;
    for (int i = 0; i < MU_NVTX_RANGES_MAX + 2; i++) {
        snprintf(name, sizeof(name), "name %d", i);
        struct mu_nvtx_key key = key_of(name, NULL, NULL, 0);
        last = mu_nvtx_range_get(nvtx, &key);
    }
    struct mu_nvtx_key one_more = key_of("one more", NULL, NULL, 0);
    CHECK(last != NULL && mu_nvtx_range_get(nvtx, &one_more) == last);
}

static void test_nothing_attached(void) {
    struct mu_nvtx_key key = key_of("x", NULL, NULL, 0);
    CHECK(!mu_nvtx_attached(NULL));
    CHECK(mu_nvtx_range_get(NULL, &key) == NULL);
    mu_nvtx_push(NULL);
    mu_nvtx_pop(NULL);
    CHECK_INT(mu_nvtx_overflowed(NULL), 0);
    mu_nvtx_free(NULL);
}

int main(void) {
    char path[] = "/tmp/test_nvtx_XXXXXX";
    int file = mkstemp(path);
    if (!CHECK(file >= 0)) {
        return check_report();
    }
    close(file);
    setenv("FAKE_NVTX_LOG", path, 1);
    unsetenv("NVTX_INJECTION64_PATH");

    struct mu_nvtx *nvtx;
    CHECK_INT(mu_nvtx_create(&nvtx, NULL), MU_OK);
    CHECK_INT(mu_nvtx_attached(nvtx), mu_nvtx_built());
    if (mu_nvtx_attached(nvtx)) {
        test_ranges(nvtx, path);
        test_long_names(nvtx, path);
        test_threads(nvtx, path);
        test_bounds(nvtx);
    }
    mu_nvtx_free(nvtx);
    test_nothing_attached();
    unlink(path);
    return check_report();
}
