#include "process_stacks/own_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

void mu_own_memory_open(struct mu_own_memory *memory) {
    memory->pid = getpid();
    memory->fd = -1;
}

void mu_own_memory_close(struct mu_own_memory *memory) {
    if (memory->fd >= 0) {
        close(memory->fd);
        memory->fd = -1;
    }
}

bool mu_own_memory_use_file(struct mu_own_memory *memory) {
    if (memory->fd < 0) {
        memory->fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    }
    return memory->fd >= 0;
}

static bool read_file(int fd, const struct mu_memory_part *part) {
    if (part->address > INT64_MAX - part->length) {
        return false;
    }
    ssize_t got = pread(fd, part->into, part->length, (off_t)part->address);
    return got >= 0 && (size_t)got == part->length;
}

static bool read_file_parts(int fd, const struct mu_memory_part *parts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!read_file(fd, &parts[i])) {
            return false;
        }
    }
    return true;
}

static ssize_t read_by_call(pid_t pid, const struct mu_memory_part *parts, size_t count,
                            size_t *wanted) {
    struct iovec here[MU_MEMORY_PARTS_MAX], there[MU_MEMORY_PARTS_MAX];
    *wanted = 0;
    for (size_t i = 0; i < count; i++) {
        here[i] = (struct iovec){parts[i].into, parts[i].length};
        there[i] = (struct iovec){(void *)(uintptr_t)parts[i].address, parts[i].length};
        *wanted += parts[i].length;
    }
    return process_vm_readv(pid, here, count, there, count, 0);
}

bool mu_own_memory_read_parts(struct mu_own_memory *memory, const struct mu_memory_part *parts,
                              size_t count) {
    if (count > MU_MEMORY_PARTS_MAX) {
        return false;
    }
    if (memory->fd >= 0) {
        return read_file_parts(memory->fd, parts, count);
    }
    size_t wanted;
    ssize_t got = read_by_call(memory->pid, parts, count, &wanted);
    bool is_refused = got < 0 && errno != EFAULT && errno != EINVAL && errno != ENOMEM;
    if (is_refused && mu_own_memory_use_file(memory)) {
        return read_file_parts(memory->fd, parts, count);
    }
    return got >= 0 && (size_t)got == wanted;
}
