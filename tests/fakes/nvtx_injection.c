/* A tool that listens to NVTX and writes down what it hears, one line a call.
 *
 * Load it with NVTX_INJECTION64_PATH; the lines are appended to the file that FAKE_NVTX_LOG names.
 * With FAKE_NVTX_QUIET set it listens and writes nothing, for benchmarks.
 * The declarations below are the ABI between NVTX 3 and a tool, from nvtx3/nvToolsExt.h and
 * nvtx3/nvtxDetail/nvtxTypes.h of the package nvidia-nvtx 13, as far as it is needed here.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MODULE_CORE = 1, MODULE_CORE2 = 5, TABLE_CALLBACKS = 1 };
enum { CORE_NAME_OS_THREAD_A = 14 };
enum {
    CORE2_MARK_EX = 1,
    CORE2_RANGE_START_EX = 2,
    CORE2_RANGE_END = 3,
    CORE2_RANGE_PUSH_EX = 4,
    CORE2_RANGE_POP = 5,
    CORE2_NAME_CATEGORY_A = 8,
    CORE2_REGISTER_STRING_A = 10,
    CORE2_CREATE_A = 12,
};
enum { MESSAGE_ASCII = 1, MESSAGE_REGISTERED = 3 };

typedef void (*function)(void);

struct callbacks {
    size_t struct_size;
    int (*get_table)(int module, function ***table, unsigned int *size);
};

struct attributes {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};

/* Domains and strings live as long as the process, as NVTX has it; the list keeps them reachable
 * for leak checkers. */
struct domain {
    struct domain *next;
    char name[1024];
};

static int log_file = -1;
static struct domain *kept;

static struct domain *keep_text(const char *text) {
    struct domain *entry = calloc(1, sizeof(*entry));
    if (entry == NULL) {
        abort();
    }
    snprintf(entry->name, sizeof(entry->name), "%s", text);
    entry->next = __atomic_load_n(&kept, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(&kept, &entry->next, entry, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
    }
    return entry;
}

static void write_line(const char *format, ...) {
    if (log_file < 0) {
        return;
    }
    char line[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof(line) - 1, format, args);
    va_end(args);
    if (length < 0 || length > (int)sizeof(line) - 2) {
        length = (int)sizeof(line) - 2;
    }
    line[length] = '\n';
    if (write(log_file, line, (size_t)length + 1) < 0) {
        abort(); /* a test without its record is worth nothing */
    }
}

static long thread_id(void) {
    return syscall(SYS_gettid);
}

static const char *domain_name(const struct domain *domain) {
    return domain == NULL ? "" : domain->name;
}

static void write_event(const char *what, const struct domain *domain,
                        const struct attributes *event) {
    if (log_file < 0) {
        return;
    }
    int registered = event->message_type == MESSAGE_REGISTERED;
    const char *text = registered || event->message_type == MESSAGE_ASCII ? event->message : "";
    write_line("%s\tdomain=%s\tmessage=%s\tregistered=%d\tcolor=%08x\tcategory=%u\ttid=%ld", what,
               domain_name(domain), text, registered, event->color, event->category, thread_id());
}

static struct domain *on_domain_create(const char *name) {
    write_line("domain\tname=%s", name);
    return keep_text(name);
}

static const char *on_register_string(struct domain *domain, const char *text) {
    write_line("string\tdomain=%s\ttext=%s", domain_name(domain), text);
    return keep_text(text)->name;
}

static void on_name_category(struct domain *domain, uint32_t number, const char *name) {
    write_line("category\tdomain=%s\tnumber=%u\tname=%s", domain_name(domain), number, name);
}

static int on_push(struct domain *domain, const struct attributes *event) {
    write_event("push", domain, event);
    return 0;
}

static int on_pop(struct domain *domain) {
    if (log_file < 0) {
        return 0;
    }
    write_line("pop\tdomain=%s\ttid=%ld", domain_name(domain), thread_id());
    return 0;
}

static uint64_t on_start(struct domain *domain, const struct attributes *event) {
    static uint64_t ranges;
    uint64_t number = __atomic_add_fetch(&ranges, 1, __ATOMIC_SEQ_CST);
    write_event("start", domain, event);
    return number;
}

static void on_end(struct domain *domain, uint64_t range) {
    write_line("end\tdomain=%s\trange=%llu", domain_name(domain), (unsigned long long)range);
}

static void on_mark(struct domain *domain, const struct attributes *event) {
    write_event("mark", domain, event);
}

static void on_name_thread(uint32_t thread, const char *name) {
    write_line("thread\ttid=%u\tname=%s", thread, name);
}

static int open_log(void) {
    const char *path = getenv("FAKE_NVTX_LOG");
    if (path != NULL) {
        log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    return log_file >= 0 || getenv("FAKE_NVTX_QUIET") != NULL;
}

__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t)) {
    const struct callbacks *callbacks = get_export_table(TABLE_CALLBACKS);
    function **core, **core2;
    unsigned int core_size, core2_size;
    if (callbacks == NULL || !callbacks->get_table(MODULE_CORE, &core, &core_size) ||
        !callbacks->get_table(MODULE_CORE2, &core2, &core2_size) ||
        core_size <= CORE_NAME_OS_THREAD_A || core2_size <= CORE2_CREATE_A || !open_log()) {
        return 0;
    }
    *core[CORE_NAME_OS_THREAD_A] = (function)on_name_thread;
    *core2[CORE2_MARK_EX] = (function)on_mark;
    *core2[CORE2_RANGE_START_EX] = (function)on_start;
    *core2[CORE2_RANGE_END] = (function)on_end;
    *core2[CORE2_RANGE_PUSH_EX] = (function)on_push;
    *core2[CORE2_RANGE_POP] = (function)on_pop;
    *core2[CORE2_NAME_CATEGORY_A] = (function)on_name_category;
    *core2[CORE2_REGISTER_STRING_A] = (function)on_register_string;
    *core2[CORE2_CREATE_A] = (function)on_domain_create;
    return 1;
}
