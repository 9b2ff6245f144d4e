// Test fixture that runs fsdpctl in the test's process, without a coordinator or with a fake one
// (scripted_api.h).
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/temp_dir.h"
#include "client/commands/commands.h"
#include "client/testing/scripted_api.h"

namespace fsdpd {

class CommandCase : public ::testing::Test {
 protected:
  // Returns the exit code. `out_` and `err_` have the output.
  int RunCommand(const std::vector<std::string>& arguments, const std::string& input = "") {
    std::istringstream in(input);
    std::ostringstream out, err;
    Console console{in, out, err};
    console.interrupt = &interrupt_;
    console.err_terminal = err_terminal_;
    console.err_width = [] { return 80; };
    const int code = RunFsdpctl(arguments, &console);
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  // Expected -o json of a list. `name` is the field of the list, and `documents` has the -o json of each
  // element.
  static std::string ListOf(const std::string& name, const std::vector<std::string>& documents) {
    std::string text = "{\n  \"" + name + "\": [";
    for (const std::string& document : documents) {
      if (&document != &documents.front()) text += ", ";
      for (const char each : document.substr(0, document.size() - 1))
        text += each == '\n' ? std::string("\n  ") : std::string(1, each);
    }
    return text + "]\n}\n";
  }

  std::string out_, err_;
  bool err_terminal_ = false;
  Interrupt interrupt_;
};

// `server_` is stopped before what a test's own fixture has for its hooks goes.
class ServedCommandCase : public CommandCase {
 protected:
  void SetUp() override { server_.Start(); }
  void TearDown() override { server_.Stop(); }

  int Run(std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.begin(), {"--server", server_.address()});
    return RunCommand(arguments, input);
  }

  ScriptedApi server_;
};

constexpr char kTinySpec[] =
    "name: a\nmodel: {preset: tiny}\ndata: {synthetic: {}, sequence_length: 8}\ntrain:\n  steps: 3\n";

// For commands that read a spec file.
class SpecCommandCase : public ServedCommandCase {
 protected:
  void SetUp() override {
    ServedCommandCase::SetUp();
    std::ofstream(file_) << kTinySpec;
  }

  TempDir dir_;
  const std::string file_ = dir_.File("job.yaml");
  Interrupt release_;  // Hooks wait for it.
};

}  // namespace fsdpd
