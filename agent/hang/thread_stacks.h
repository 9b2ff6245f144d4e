// Kernel view of the threads of a process, to diagnose hangs. Works without cooperation of the process, also
// if it is stopped. Per thread: name, state, what it waits for in the kernel (wchan, system call number,
// kernel stack if readable) and its position in user code.
//
// The position has two parts. `at` is the next instruction of the program. `calls` are the words on its stack
// that point into code, innermost first: return addresses of active calls, and some stale ones. Both are
// MODULE+0xOFFSET; resolve them with `addr2line -Cfe MODULE 0xOFFSET`. A running thread has neither.
//
// A process that is blocked in the kernel may hold the lock of its memory map, and reading then blocks for as
// long: never call this on a thread that others wait for.
#pragma once

#include <sys/types.h>

#include <string>

namespace fsdpd {

constexpr size_t kMaxThreadsText = 256 << 10;  // Longer texts are truncated.

// One line if the process is gone.
std::string ThreadsText(pid_t pid);

}  // namespace fsdpd
