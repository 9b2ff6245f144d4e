// How a program ends by an exception that nobody caught, on whichever thread: where the system gives no
// memory or no thread that may be anywhere. It is told in words, and there is an exit code; without, it would
// be SIGABRT and the exception's name.
//
// Nothing is unwound: the thread may hold what telling needs, and telling may find no memory either. Then it
// is SIGABRT after all, within two seconds.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace fsdpd {

// From now on. `tell` runs on the thread that threw; once, others that throw meanwhile wait for the end.
void EndOnUncaught(std::function<void(const std::exception&)> tell, int exit_code = 1);

// In words, with the limit that was met where it is a shortage.
std::string UncaughtText(const std::exception& error);

// For a program whose log is all it has.
void LogUncaught();

}  // namespace fsdpd
