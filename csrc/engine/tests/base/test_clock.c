/* Anchors of a thread that the scheduler takes its processor from while it reads the clocks. */
#include "base/clock.h"

#include "tests/check.h"

enum { READ_NS = 100, STALL_NS = 40000000, REAL_OFFSET_NS = 700000000 };

static int64_t now_ns;
static int reads;
static int stalled_read; /* before which of the reads the processor goes; 0: none */

/* Instead of the libc's, for all of this program. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    now_ns += READ_NS + (++reads == stalled_read ? STALL_NS : 0);
    int64_t ns = now_ns + (clock == CLOCK_REALTIME ? REAL_OFFSET_NS : 0);
    *now = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}

static int64_t offset_with_stall(int read) {
    reads = 0;
    stalled_read = read;
    struct mu_anchor anchor = mu_clock_anchor(false);
    return anchor.real_ns - anchor.mono_ns;
}

static void test_a_stall_moves_no_offset(void) {
    CHECK_INT(offset_with_stall(0), REAL_OFFSET_NS);
    int last = reads;
    for (int read = 1; read <= last; read++) {
        CHECK_INT(offset_with_stall(read), REAL_OFFSET_NS);
    }
}

int main(void) {
    test_a_stall_moves_no_offset();
    return check_report();
}
