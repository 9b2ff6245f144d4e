// Handling of uncaught exceptions on any thread, for example when the system has no memory or threads left:
// reports the error and exits with a code. Without it, the process would abort with SIGABRT and the type of
// the exception.
//
// Nothing is unwound: the thread may hold locks that reporting needs, and reporting may run out of memory
// too. In that case the process aborts with SIGABRT within two seconds.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace fsdpd {

// Installs the handler. `tell` runs once, on the thread that threw; other threads that throw meanwhile block
// until the process exits.
void EndOnUncaught(std::function<void(const std::exception&)> tell, int exit_code = 1);

// Message of the error, with the limit that was reached if it is a shortage.
std::string UncaughtText(const std::exception& error);

// Logs the error, for programs without other output.
void LogUncaught();

}  // namespace fsdpd
