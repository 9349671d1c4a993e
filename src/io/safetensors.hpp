// safetensors files: the length of a header, the header in JSON, then the elements of all tensors without
// gaps, in C order, little-endian. Opening costs the header, whose every claim is compared with the file's
// size; elements are mapped. Memory: some times the header.
// Definition: https://github.com/huggingface/safetensors#format
// tests: tests/io/test_safetensors.cpp
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/container.hpp"
#include "io/mapped_source.hpp"

namespace ejk::io {

class AtomicFile;
struct TensorType;

struct Tensor {
  std::string name;
  const TensorType* type = nullptr;
  Shape shape = {};
  std::int64_t begin = 0, end = 0;  // its bytes, from the first of all tensors on
};

/// An open file. Its tensors may outlive it. Thread-safe.
class SafetensorsFile {
 public:
  /// Throws Error{input} that names the file, and the tensor at fault.
  SafetensorsFile(std::string path, UntypedBytes untyped);

  const std::string& path() const { return path_; }
  /// By position.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Null where there is none.
  const Tensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Throws for types that ejk does not have.
  std::shared_ptr<const ArraySource> open(const Tensor& tensor, const std::string& name) const;

 private:
  void parse_header(std::string_view text);
  void check_positions(std::int64_t data_bytes);

  std::string path_;
  UntypedBytes untyped_;
  std::vector<Tensor> tensors_;
  std::vector<std::uint32_t> by_name_;
  std::map<std::string, std::string> metadata_;
  std::int64_t data_at_ = 0;
  std::shared_ptr<const MappedFile> data_;
};

StoredArray stored_array(const Tensor& tensor);

/// Whether a file with these first bytes may be one.
bool begins_as_safetensors(std::string_view begin, std::int64_t size);

std::shared_ptr<const ShardContainer> open_safetensors_shard(const std::string& path,
                                                             const OpenOptions& options);
std::shared_ptr<const OpenContainer> open_safetensors(const std::string& path, const OpenOptions& options);

/// A new file of all arrays of the job, the bytes that the safetensors package writes.
void write_safetensors(const WriteJob& job);
/// The same into an open file, which the caller commits.
void write_safetensors(const WriteJob& job, AtomicFile& file);
void check_safetensors(const WriteJob& job);

}  // namespace ejk::io
