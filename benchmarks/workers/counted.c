// What a process under callgrind says of its steps: see counted.py.
#include <valgrind/callgrind.h>

void begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

void mark(void) { CALLGRIND_DUMP_STATS; }

void end(void) { CALLGRIND_STOP_INSTRUMENTATION; }
