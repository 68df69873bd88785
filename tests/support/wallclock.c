/* Another wall clock for one program, by LD_PRELOAD.
 *
 * The file that HOLDFAST_WALL_CLOCK names holds one number: by how many nanoseconds the wall clock of this program is
 * ahead. It is mapped, so that a test may set the clock while the program runs. Only the wall clock changes: monotonic
 * clocks and sleeps stay as they are. The raw system calls are used because the allocator of a program may read the
 * time before the C library is ready.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *ahead_ns;

__attribute__((constructor)) static void map_the_file(void)
{
    const char *path = getenv("HOLDFAST_WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        ahead_ns = page;
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, which, now);
    if (!failed && ahead_ns && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)now->tv_sec * SECOND + now->tv_nsec + *ahead_ns;
        now->tv_sec = ns / SECOND;
        now->tv_nsec = ns % SECOND;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return (time_t)-1;
    if (out)
        *out = exact.tv_sec;
    return exact.tv_sec;
}
