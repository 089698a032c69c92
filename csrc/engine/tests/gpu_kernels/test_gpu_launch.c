/* The calls of the driver when GPU kernels are used, and the results of its failures. */
#include "tests/gpu_kernels/gpu_fixture.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_kernels/gpu_cache.h"
#include "hash/tensor_hash.h"

enum { NUMBERS = 20000 };

static float numbers[NUMBERS];
static const int64_t shape[] = {NUMBERS};

/* Calls that wait for the GPU, or may. */
static const char *const waiting[] = {"cuStreamSynchronize", "cuEventSynchronize", "cuEventQuery",
                                      "cuMemcpyDtoHAsync"};

static void check_nothing_waited(void) {
    for (size_t i = 0; i < sizeof(waiting) / sizeof(waiting[0]); i++) {
        CHECK_INT(fake_fakeCudaCalls(waiting[i]), 0);
    }
}

static void forget_calls(void) {
    pthread_mutex_lock(&fake.lock);
    memset(fake.functions, 0, sizeof(fake.functions));
    fake.launches = 0;
    pthread_mutex_unlock(&fake.lock);
}

static struct mu_tensor on_fake(const int64_t *size) {
    struct mu_tensor tensor = tensor_of(MU_DTYPE_FLOAT32, numbers, 1, size, NULL);
    return on_gpu(&tensor);
}

/* All of them, on one stream. */
static int run_all(void *stream, struct mu_error *err) {
    static const struct mu_compare_tolerance exact = {0, 0, 0};
    static struct {
        struct mu_gpu_diff diff;
        struct mu_gpu_mismatch list[3];
    } diff;
    static const enum mu_gpu_operation operations[] = {MU_GPU_OP_HASH, MU_GPU_OP_SUMS,
                                                       MU_GPU_OP_NAN_INF, MU_GPU_OP_STATS};
    struct mu_tensor tensor = on_fake(shape);
    uint64_t hash[MU_GPU_HASH_WORDS], sums[MU_GPU_SUMS_WORDS];
    int64_t counts[MU_GPU_NAN_INF_WORDS];
    double words[MU_GPU_STATS_WORDS];
    void *const out[] = {hash, sums, counts, words};
    int code = MU_OK;
    for (int i = 0; code == MU_OK && i < 4; i++) {
        code = mu_gpu_enqueue_on(fixture_gpu, operations[i], &tensor, stream, out[i], err);
    }
    return code != MU_OK ? code
                         : mu_gpu_compare_on(fixture_gpu, &tensor, &tensor, &exact, 3, stream,
                                             &diff.diff, err);
}

static void test_all_goes_to_the_stream_and_nothing_waits(void) {
    forget_calls();
    fixture_open("");
    void *stream = fake_fakeCudaStream(3);
    CHECK_INT(run_all(stream, NULL), MU_OK);
    CHECK_INT(fixture_compiled, 4);
    CHECK_INT(fake.launches, 10);
    for (int i = 0; i < fake.launches; i++) {
        CHECK_INT(fake.launched[i].stream, 3);
        CHECK(fake.launched[i].blocks <= PROCESSORS * 8 || fake.launched[i].threads == 256);
    }
    check_nothing_waited();
    CHECK_INT(fake_fakeCudaCalls("cuCtxPushCurrent"), 5);
    CHECK_INT(fake_fakeCudaCalls("cuCtxPopCurrent"), 5);
    CHECK_INT(fake_fakeCudaLiveMemory(), 0);
    fixture_close();
}

/* Compiling, loading and asking the device happen once. */
static void test_the_second_time_only_launches(void) {
    fixture_open("");
    CHECK_INT(run_all(NULL, NULL), MU_OK);
    forget_calls();
    CHECK_INT(run_all(NULL, NULL), MU_OK);
    CHECK_INT(fixture_compiled, 4);
    CHECK_INT(fake_fakeCudaCalls("cuModuleLoadData"), 0);
    CHECK_INT(fake_fakeCudaCalls("cuModuleGetFunction"), 0);
    CHECK_INT(fake_fakeCudaCalls("cuDeviceGetAttribute"), 0);
    CHECK_INT(fake_fakeCudaCalls("cuDevicePrimaryCtxRetain"), 0);
    CHECK_INT(fake_fakeCudaCalls("cuMemPoolCreate"), 0);
    fixture_close();
}

/* The first use of all is in the middle of a capture. */
static void test_a_capture_is_not_broken(void) {
    fixture_open("");
    void *stream = fake_fakeCudaStream(1);
    fake_fakeCudaCapture(stream, 1);
    CHECK_INT(run_all(stream, NULL), MU_OK);
    struct mu_gpu_results results;
    struct mu_error err;
    CHECK_INT(mu_gpu_results_open(&results, fixture_gpu, 0, stream, 64, &err), MU_ERR_STATE);
    CHECK(results.captured);
    CHECK(strstr(err.message, "captured into a CUDA graph") != NULL);
    mu_gpu_results_close(&results);
    fake_fakeCudaCapture(stream, 0);
    fixture_close();
}

static void test_results_are_fetched_with_one_wait(void) {
    forget_calls();
    fixture_open("");
    struct mu_gpu_results results;
    struct mu_digest digests[2];
    struct mu_digest want;
    struct mu_tensor tensor = on_fake(shape);
    void *stream = fake_fakeCudaStream(2);
    CHECK_INT(mu_gpu_results_open(&results, fixture_gpu, 0, stream, sizeof(digests), NULL), MU_OK);
    for (int i = 0; i < 2; i++) {
        uint64_t *row = (uint64_t *)results.memory + (size_t)i * MU_GPU_HASH_WORDS;
        CHECK_INT(mu_gpu_enqueue_on(fixture_gpu, MU_GPU_OP_HASH, &tensor, stream, row, NULL),
                  MU_OK);
    }
    check_nothing_waited();
    CHECK_INT(mu_gpu_results_fetch(&results, digests, NULL), MU_OK);
    CHECK_INT(fake_fakeCudaCalls("cuStreamSynchronize"), 1);
    mu_gpu_results_close(&results);
    tensor.device = MU_DEVICE_CPU;
    mu_tensor_hash(&tensor, &want);
    CHECK_BYTES(&digests[0], &want, sizeof(want));
    CHECK_BYTES(&digests[1], &want, sizeof(want));
    fixture_close();
}

static void test_each_failure_is_named(void) {
    static const char *const calls[] = {
        "cuDeviceGet",      "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent", "cuModuleLoadData",     "cuModuleGetFunction",
        "cuMemsetD32Async", "cuLaunchKernel",       "cuMemAllocFromPoolAsync",
        "cuMemPoolCreate",  "cuMemFreeAsync"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct mu_error err = {0};
        char failure[64];
        snprintf(failure, sizeof(failure), "%s:0:700", calls[i]);
        fixture_open("");
        fake_fakeCudaFail(failure);
        CHECK_INT(run_all(NULL, &err), MU_ERR_STATE);
        CHECK(strstr(err.message, calls[i]) != NULL);
        fake_fakeCudaFail("");
        fixture_close();
    }
}

/* A failure that went away does no harm. */
static void test_a_failed_launch_can_be_repeated(void) {
    fixture_open("");
    fake_fakeCudaFail("cuModuleLoadData:0:700");
    CHECK_INT(run_all(NULL, NULL), MU_ERR_STATE);
    fake_fakeCudaFail("");
    CHECK_INT(run_all(NULL, NULL), MU_OK);
    CHECK_INT(fixture_compiled, 4);
    fixture_close();
}

static void test_without_a_driver(void) {
    struct mu_cuda_driver missing;
    struct mu_gpu_options options = {.driver = &missing, .compiler = fixture_compile};
    struct mu_gpu *gpu;
    struct mu_error err;
    struct mu_tensor tensor = on_fake(shape);
    uint64_t hash[MU_GPU_HASH_WORDS];
    mu_cuda_driver_open(&missing, "libno_such_driver.so.1");
    CHECK_INT(mu_gpu_open(&gpu, &options, NULL), MU_OK);
    CHECK_INT(mu_gpu_enqueue_on(gpu, MU_GPU_OP_HASH, &tensor, NULL, hash, &err), MU_ERR_STATE);
    CHECK(strstr(err.message, "no CUDA driver") != NULL);
    mu_gpu_close(gpu);
}

/* One that has events, but is too old for kernels and pools: its stubs fail. */
static void test_with_half_a_driver(void) {
    struct mu_cuda_driver old;
    struct mu_gpu_options options = {
        .driver = &old, .cache_folder = "", .compiler = fixture_compile};
    struct mu_gpu *gpu;
    struct mu_error err;
    struct mu_tensor tensor = on_fake(shape);
    uint64_t hash[MU_GPU_HASH_WORDS];
    mu_cuda_driver_from(&old, fake_lookup, "cuModuleLoadData");
    CHECK(old.available);
    CHECK_INT(mu_gpu_open(&gpu, &options, NULL), MU_OK);
    CHECK_INT(mu_gpu_enqueue_on(gpu, MU_GPU_OP_HASH, &tensor, NULL, hash, &err), MU_ERR_STATE);
    CHECK(strstr(err.message, "cuModuleLoadData") != NULL);
    mu_gpu_close(gpu);
}

static void test_wrong_tensors(void) {
    fixture_open("");
    struct mu_tensor tensor = on_fake(shape);
    uint64_t hash[MU_GPU_HASH_WORDS];
    tensor.device = MU_DEVICE_CPU;
    CHECK_INT(mu_gpu_enqueue_on(fixture_gpu, MU_GPU_OP_HASH, &tensor, NULL, hash, NULL),
              MU_ERR_ARGUMENT);
    tensor.device = MU_DEVICE_CUDA;
    tensor.device_index = 64;
    CHECK_INT(mu_gpu_enqueue_on(fixture_gpu, MU_GPU_OP_HASH, &tensor, NULL, hash, NULL),
              MU_ERR_LIMIT);
    tensor.device_index = 1; /* there is one device */
    CHECK_INT(mu_gpu_enqueue_on(fixture_gpu, MU_GPU_OP_HASH, &tensor, NULL, hash, NULL),
              MU_ERR_STATE);
    fixture_close();
}

static void test_a_forked_child_is_refused(void) {
    fixture_open("");
    CHECK_INT(run_all(NULL, NULL), MU_OK);
    pid_t child = fork();
    if (child == 0) {
        struct mu_error err = {0};
        int code = run_all(NULL, &err);
        _exit(code == MU_ERR_STATE && strstr(err.message, "forked") != NULL ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    fixture_close();
}

/* --- the cache on disk -------------------------------------------------------------------- */

static char folder[] = "/tmp/test_gpu_XXXXXX";

static void test_the_next_process_compiles_nothing(void) {
    struct mu_gpu_state state;
    char below[64];
    snprintf(below, sizeof(below), "%s/a/b", folder);
    fixture_open(below);
    CHECK_INT(run_all(NULL, NULL), MU_OK);
    CHECK_INT(fixture_compiled, 4);
    fixture_close();
    fixture_open(below);
    CHECK_INT(run_all(NULL, NULL), MU_OK);
    CHECK_INT(fixture_compiled, 0);
    mu_gpu_state_of(fixture_gpu, &state);
    CHECK_INT(state.from_disk, 4);
    CHECK_INT(state.loaded, 4);
    CHECK_STR(state.cache_folder, below);
    fixture_close();
}

static void flip(const char *path, long at) {
    FILE *file = fopen(path, "r+b");
    if (CHECK(file != NULL)) {
        fseek(file, at, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 1, file);
        fclose(file);
    }
}

static bool loads(const char *key) {
    char *image = NULL;
    size_t size = 0;
    bool found = mu_gpu_cache_load(folder, "image", key, &image, &size);
    if (found) {
        CHECK_STR(image, "compiled");
        CHECK_INT(size, 8);
    }
    free(image);
    return found;
}

/* Whatever byte of it is changed, wherever it is cut. */
static void test_a_damaged_image_is_as_good_as_none(void) {
    char path[64];
    snprintf(path, sizeof(path), "%s/image", folder);
    CHECK(!loads("key"));
    CHECK(mu_gpu_cache_store(folder, "image", "key", "compiled", 8));
    CHECK(loads("key"));
    CHECK(!loads("kez"));
    CHECK(!loads("ke"));
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    fclose(file);
    for (long at = 0; at < size; at++) {
        flip(path, at);
        CHECK(!loads("key"));
        flip(path, at);
    }
    CHECK(loads("key"));
    for (long length = size - 1; length >= 0; length--) {
        CHECK(truncate(path, length) == 0);
        CHECK(!loads("key"));
    }
    CHECK(mu_gpu_cache_store(folder, "image", "key", "compiled", 8));
    CHECK(loads("key"));
}

static void test_an_image_that_others_may_have_written_is_none(void) {
    char path[64], other[64];
    snprintf(path, sizeof(path), "%s/image", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    CHECK(mu_gpu_cache_store(folder, "image", "key", "compiled", 8));
    CHECK(chmod(path, 0620) == 0 && !loads("key"));
    CHECK(chmod(path, 0600) == 0 && loads("key"));
    CHECK(link(path, other) == 0 && !loads("key"));
    CHECK(unlink(path) == 0 && symlink(other, path) == 0 && !loads("key"));
    CHECK(unlink(path) == 0 && rename(other, path) == 0 && loads("key"));
    if (geteuid() == 0) {
        CHECK(chown(path, 12345, 12345) == 0 && !loads("key"));
    }
}

static void test_without_a_folder(void) {
    char path[MU_GPU_CACHE_PATH_MAX];
    char *image;
    size_t size;
    CHECK(!mu_gpu_cache_store("/proc/no/such", "image", "key", "compiled", 8));
    CHECK(!mu_gpu_cache_store("", "image", "key", "compiled", 8));
    CHECK(!mu_gpu_cache_load("", "image", "key", &image, &size));
    setenv("XDG_CACHE_HOME", "/x/cache", 1);
    mu_gpu_cache_folder(path);
    CHECK_STR(path, "/x/cache/my_utils");
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/home/me", 1);
    mu_gpu_cache_folder(path);
    CHECK_STR(path, "/home/me/.cache/my_utils");
    unsetenv("HOME");
    mu_gpu_cache_folder(path);
    CHECK_STR(path, "");
}

int main(void) {
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    for (int i = 0; i < NUMBERS; i++) {
        numbers[i] = (float)random_number();
    }
    fake_fakeCudaMakeCurrent(0);
    test_all_goes_to_the_stream_and_nothing_waits();
    test_the_second_time_only_launches();
    test_a_capture_is_not_broken();
    test_results_are_fetched_with_one_wait();
    test_each_failure_is_named();
    test_a_failed_launch_can_be_repeated();
    test_without_a_driver();
    test_with_half_a_driver();
    test_wrong_tensors();
    test_a_forked_child_is_refused();
    test_the_next_process_compiles_nothing();
    test_a_damaged_image_is_as_good_as_none();
    test_an_image_that_others_may_have_written_is_none();
    test_without_a_folder();
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK_INT(system(command), 0);
    return check_report();
}
