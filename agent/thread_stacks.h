// What the kernel shows of a process's threads, for people who ask why it stands still: also of one that is
// stopped, and without its help. Of each thread: its name and state, what it waits for in the kernel (wchan,
// the number of its system call, its kernel stack where this process may read that), and where its code is.
//
// Where its code is, is two things. `at` is the next instruction of its program. `calls` are words of its
// stack that point into code, the innermost first: among them are the addresses to which its calls return,
// and also some of calls that have returned. Both are MODULE+0xOFFSET, which `addr2line -Cfe MODULE 0xOFFSET`
// names. A thread that is running shows neither.
//
// A process that does not leave the kernel may hold locks that its memory map is read under, so reading may
// wait for as long as it does: never call it on a thread that others wait for.
#pragma once

#include <sys/types.h>

#include <string>

namespace fsdpd {

constexpr size_t kMaxThreadsText = 256 << 10;  // What is longer is cut.

// A line that says so for a process that is gone.
std::string ThreadsText(pid_t pid);

}  // namespace fsdpd
