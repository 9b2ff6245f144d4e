// Writer for Python pickles, one opcode per call, in protocol 2 like torch.save: only opcodes that torch's
// weights_only reader supports.
//
// Containers are written as Python does: BeginDict(); key; value; ...; SetItems(). An object is a Class(),
// its argument tuple and NewObject() or Reduce(), then its state and Build(). Repeated texts and classes are
// fetched from the memo. Take() ends the pickle.
//
// Not thread-safe. No errors: calls are written as they come.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

namespace fsdpd {

class PickleWriter {
 public:
  PickleWriter();

  void None() { bytes_ += 'N'; }
  void Bool(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void Int(int64_t value);
  void Float(double value);
  void Text(absl::string_view text);  // REQUIRES: UTF-8, under 4 GiB.
  void Class(absl::string_view module, absl::string_view name);

  void Mark() { bytes_ += '('; }
  void EmptyTuple() { bytes_ += ')'; }
  void Tuple() { bytes_ += 't'; }                                         // Wraps everything above the mark.
  void TupleOf(int count) { bytes_ += static_cast<char>(0x84 + count); }  // Wraps the last 1 to 3 values.
  void EmptyList() { bytes_ += ']'; }
  void BeginList() { bytes_ += "]("; }  // Items up to Appends().
  void Appends() { bytes_ += 'e'; }
  void BeginDict() { bytes_ += "}("; }  // Keys and values up to SetItems().
  void SetItems() { bytes_ += 'u'; }

  void NewObject() { bytes_ += '\x81'; }  // Class, tuple: cls.__new__(cls, *tuple).
  void Reduce() { bytes_ += 'R'; }        // Class, tuple: cls(*tuple).
  void Build() { bytes_ += 'b'; }         // Object, state.
  void Outside() { bytes_ += 'Q'; }       // The id of data stored elsewhere.

  // Memoizes what was written last and returns its memo index.
  int64_t Remember();
  void Again(int64_t remembered);

  std::string Take();  // Ends the pickle and returns it.

 private:
  void Append(char opcode, uint64_t argument, int width);
  bool Known(const std::string& key);

  std::string bytes_;
  absl::flat_hash_map<std::string, int64_t> known_;
  int64_t remembered_ = 0;
};

}  // namespace fsdpd
