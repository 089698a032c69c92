/* Quotas of cgroups: trees as Kubernetes, SLURM and systemd lay them out, written by hand. */
#include "host/quota.h"

#include "tests/host/tree.h"

static void write_stat(const char *name, const char *key, uint64_t value) {
    char text[TREE_TEXT_BYTES];
    snprintf(text, sizeof(text), "nr_periods 5\nnr_throttled 2\n%s %" PRIu64 "\n", key, value);
    tree_write(name, text);
}

static uint64_t waited(struct mu_quota *quota) {
    uint64_t ns = 77;
    CHECK(mu_quota_waited(quota, &ns));
    return ns;
}

/* A pod in a separate namespace sees its own cgroup as the root. */
static void test_kubernetes_version_2(void) {
    struct mu_quota quota;
    tree_write("cgroup", "0::/\n");
    tree_mounts("30 29 0:26 / @/k8s ro,nosuid - cgroup2 cgroup rw,nsdelegate\n");
    write_stat("k8s/cpu.stat", "throttled_usec", 1000);
    mu_quota_open(&quota, tree_folder);
    CHECK_INT(quota.count, 1);
    CHECK_INT(waited(&quota), 0);
    write_stat("k8s/cpu.stat", "throttled_usec", 1250);
    CHECK_INT(waited(&quota), 250000);
    CHECK_INT(waited(&quota), 0);
    mu_quota_close(&quota);
}

/* A job's step, and the quota stands at the job. Version 1 counts nanoseconds; the root of the
 * hierarchy has no fields of that kind. */
static void test_slurm_version_1(void) {
    struct mu_quota quota;
    tree_write("cgroup", "4:memory:/slurm/uid_7/job_3\n"
                         "3:cpu,cpuacct:/slurm/uid_7/job_3/step_0\n0::/system.slice\n");
    tree_mounts("32 31 0:29 / @/v1cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
                "33 31 0:30 / @/v1mem rw,relatime - cgroup cgroup rw,memory\n");
    tree_write("v1cpu/cpu.stat", "");
    write_stat("v1cpu/slurm/cpu.stat", "throttled_time", 0);
    write_stat("v1cpu/slurm/uid_7/cpu.stat", "throttled_time", 0);
    write_stat("v1cpu/slurm/uid_7/job_3/cpu.stat", "throttled_time", 500);
    write_stat("v1cpu/slurm/uid_7/job_3/step_0/cpu.stat", "throttled_time", 20);
    mu_quota_open(&quota, tree_folder);
    CHECK_INT(quota.count, 4);
    write_stat("v1cpu/slurm/uid_7/job_3/cpu.stat", "throttled_time", 900500);
    write_stat("v1cpu/slurm/uid_7/job_3/step_0/cpu.stat", "throttled_time", 50020);
    CHECK_INT(waited(&quota), 900000);
    mu_quota_close(&quota);
}

/* A container without a namespace: its mount shows its own cgroup, and /proc the host's path. */
static void test_docker_version_1(void) {
    struct mu_quota quota;
    tree_write("cgroup", "5:cpuset:/docker/ab12\n4:cpuacct,cpu:/docker/ab12\n");
    tree_mounts("41 40 0:29 /docker/ab12 @/docker ro - cgroup cgroup rw,cpuacct,cpu\n");
    write_stat("docker/cpu.stat", "throttled_time", 5);
    mu_quota_open(&quota, tree_folder);
    CHECK_INT(quota.count, 1);
    write_stat("docker/cpu.stat", "throttled_time", 8);
    CHECK_INT(waited(&quota), 3);
    mu_quota_close(&quota);
}

static void test_systemd_version_2(void) {
    struct mu_quota quota;
    tree_write("cgroup", "0::/user.slice/train.service\n");
    tree_mounts("30 29 0:26 / @/v2 rw - cgroup2 cgroup2 rw\n");
    tree_write("v2/cpu.stat", "usage_usec 7\n");
    write_stat("v2/user.slice/cpu.stat", "throttled_usec", 0);
    write_stat("v2/user.slice/train.service/cpu.stat", "throttled_usec", 4);
    mu_quota_open(&quota, tree_folder);
    CHECK_INT(quota.count, 2);
    write_stat("v2/user.slice/train.service/cpu.stat", "throttled_usec", 3);
    CHECK_INT(waited(&quota), 0); /* a counter that falls is none */
    mu_quota_close(&quota);
}

static void test_nothing_is_known(void) {
    static const char *const cgroups[] = {"", "nonsense\n", "0:\n", "1:cpu:/a\n", "::\n:::\n"};
    static const char *const mounts[] = {"", "a b c d\n", " - \n", "1 2 3 / @/none rw - cgroup\n",
                                         "1 2 3 / @/none rw - cgroup2 x y\n"};
    uint64_t ns;
    for (size_t i = 0; i < sizeof(cgroups) / sizeof(cgroups[0]); i++) {
        struct mu_quota quota;
        tree_write("cgroup", cgroups[i]);
        tree_mounts(mounts[i]);
        mu_quota_open(&quota, tree_folder);
        CHECK_INT(quota.count, 0);
        CHECK(!mu_quota_waited(&quota, &ns));
        mu_quota_close(&quota);
    }
    struct mu_quota quota;
    mu_quota_open(&quota, "/no/such/folder");
    CHECK_INT(quota.count, 0);
}

int main(void) {
    tree_make();
    test_kubernetes_version_2();
    test_slurm_version_1();
    test_docker_version_1();
    test_systemd_version_2();
    test_nothing_is_known();
    tree_remove();
    return check_report();
}
