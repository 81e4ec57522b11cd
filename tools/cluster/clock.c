/* A date that differs, for the processes of one host: Linux has namespaces for clocks that count, not for the one with a date.

   Preloaded (LD_PRELOAD), with CLUSTER_CLOCK_AHEAD_S seconds. What reads the date gets it with that added; what waits until
   a date has it taken off again, so that every wait is as long as it was meant to be. Durations, and the dates of files, are
   not touched. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead_s;

__attribute__((constructor)) static void begin(void) {
    const char *told = getenv("CLUSTER_CLOCK_AHEAD_S");
    ahead_s = told ? atol(told) : 0;
}

static int is_date(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

/* The same moment on the machine's clock. */
static const struct timespec *machine(const struct timespec *date, struct timespec *room) {
    if (!date) return date;
    *room = *date;
    room->tv_sec -= ahead_s;
    return room;
}

/* The C library's own function; of a name with several versions, the present one. */
static void *original(const char *name, const char *const versions[]) {
    void *found = NULL;
    for (; versions && *versions && !found; versions++) found = dlvsym(RTLD_NEXT, name, *versions);
    return found ? found : dlsym(RTLD_NEXT, name);
}

#define ORIGINAL(name, versions)                                   \
    static __typeof__(&name) real;                                 \
    if (!real) real = (__typeof__(&name))original(#name, versions)

static const char *const CONDITION_VERSIONS[] = {"GLIBC_2.3.2", "GLIBC_2.17", NULL}; /* x86-64, arm64 */

int clock_gettime(clockid_t clock, struct timespec *now) {
    ORIGINAL(clock_gettime, NULL);
    int status = real(clock, now);
    if (!status && is_date(clock)) now->tv_sec += ahead_s;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    ORIGINAL(gettimeofday, NULL);
    int status = real(now, zone);
    if (!status) now->tv_sec += ahead_s;
    return status;
}

time_t time(time_t *room) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (room) *room = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    if (base != TIME_UTC) return 0;
    return clock_gettime(CLOCK_REALTIME, now) ? 0 : base;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    ORIGINAL(clock_nanosleep, NULL);
    struct timespec room;
    return real(clock, flags, (flags & TIMER_ABSTIME) && is_date(clock) ? machine(until, &room) : until, left);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    ORIGINAL(sem_timedwait, NULL);
    struct timespec room;
    return real(semaphore, machine(until, &room));
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until) {
    ORIGINAL(sem_clockwait, NULL);
    struct timespec room;
    return real(semaphore, clock, is_date(clock) ? machine(until, &room) : until);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    ORIGINAL(pthread_mutex_timedlock, NULL);
    struct timespec room;
    return real(mutex, machine(until, &room));
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until) {
    ORIGINAL(pthread_cond_clockwait, CONDITION_VERSIONS);
    struct timespec room;
    return real(condition, mutex, clock, is_date(clock) ? machine(until, &room) : until);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    ORIGINAL(pthread_cond_timedwait, CONDITION_VERSIONS);
    struct timespec room;
    /* A condition may have been made for the clock that counts, as the C library alone knows. No host has been
       up for thirty years, and every date is later than 2001. */
    return real(condition, mutex, until->tv_sec > 1000000000 ? machine(until, &room) : until);
}
