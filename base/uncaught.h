// How a program ends by an exception that nobody caught, on whichever thread: where the system gives no
// memory or no thread that may be anywhere. It is told in words, and the exit code is 1; without, it would be
// SIGABRT and the exception's name.
//
// Nothing is unwound: the thread may hold what telling needs, and telling may find no memory either. Then it
// is SIGABRT after all, within two seconds.
#pragma once

#include <exception>
#include <functional>

namespace fsdpd {

// From now on. `tell` runs on the thread that threw; once, others that throw meanwhile wait for the end.
void EndOnUncaught(std::function<void(const std::exception&)> tell);

// For a program whose log is all it has.
void LogUncaught();

}  // namespace fsdpd
