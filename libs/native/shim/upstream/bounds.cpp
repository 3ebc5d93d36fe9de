// Bounds by allocation: whatever the chat code does, it allocates, so operator new is where a call is stopped. It costs
// other threads one look at a thread's own variable.

#include "bounds.h"

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

#include <pthread.h>
#include <time.h>

#ifdef __APPLE__
#include <malloc/malloc.h>
#define malloc_usable_size malloc_size
#else
#include <malloc.h>
#endif

namespace {

constexpr size_t   stack_size  = size_t(256) << 20; // of addresses; pages that nothing touches cost nothing
constexpr size_t   stack_spare = size_t(32) << 20;  // for what recurses without allocating
constexpr unsigned look_every  = 128;               // allocations between two looks at the clock

// overrun leaves operator new where the bounds are reached.
struct overrun : std::bad_alloc {
    const char * what() const noexcept override { return "out of bounds"; }
};

struct account {
    dgr::bounds  bounds;
    const char * base; // of the stack
    double       started;
    int64_t      held        = 0;
    unsigned     allocations = 0;
    const char * broken      = nullptr; // which bound, once one is
};

thread_local account * current = nullptr;
thread_local bool      strict  = false;

double cpu_seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

void check(account & a, size_t size) {
    const char here = 0;
    if (a.broken == nullptr) {
        if (a.held + int64_t(size) > int64_t(a.bounds.memory)) {
            a.broken = "it takes too much memory";
        } else if (size_t(a.base - &here) > stack_size - stack_spare) {
            a.broken = "it nests too deep";
        } else if (++a.allocations % look_every == 0 && cpu_seconds() - a.started > a.bounds.cpu) {
            a.broken = "it takes too long";
        }
    }
    if (a.broken != nullptr) {
        throw overrun();
    }
}

struct job {
    const dgr::bounds &           bounds;
    const std::function<void()> & body;
    std::exception_ptr            error;
    const char *                  broken = nullptr;
};

void * run(void * argument) {
    job &      j    = *static_cast<job *>(argument);
    const char here = 0;
    account    a{ j.bounds, &here, cpu_seconds() };
    current = &a;
    try {
        j.body();
    } catch (...) {
        j.error = std::current_exception();
    }
    current  = nullptr;
    j.broken = a.broken;
    return nullptr;
}

} // namespace

void * operator new(size_t size) {
    if (current != nullptr) {
        check(*current, size);
    }
    void * p = malloc(size > 0 ? size : 1);
    if (p == nullptr) {
        throw std::bad_alloc();
    }
    if (current != nullptr) {
        current->held += int64_t(malloc_usable_size(p));
    }
    return p;
}

void operator delete(void * p) noexcept {
    if (current != nullptr && p != nullptr) {
        current->held -= int64_t(malloc_usable_size(p));
    }
    free(p);
}

void operator delete(void * p, size_t) noexcept { operator delete(p); }

namespace dgr {

void within(const bounds & bounds, const std::function<void()> & body) {
    job            j{ bounds, body, nullptr };
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_size);
    pthread_t thread;
    const int code = pthread_create(&thread, &attributes, run, &j);
    pthread_attr_destroy(&attributes);
    if (code != 0) {
        throw std::bad_alloc();
    }
    pthread_join(thread, nullptr);
    if (j.broken != nullptr) {
        throw std::length_error(j.broken);
    }
    if (j.error) {
        std::rethrow_exception(j.error);
    }
}

strict_schema::strict_schema() { strict = true; }
strict_schema::~strict_schema() { strict = false; }

void incomplete_schema(const char * pattern, ...) {
    if (!strict) {
        return;
    }
    char    text[1024];
    va_list args;
    va_start(args, pattern);
    vsnprintf(text, sizeof(text), pattern, args);
    va_end(args);
    throw std::invalid_argument(text);
}

} // namespace dgr
