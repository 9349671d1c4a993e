#include "support/golden.hpp"

#include <hdf5.h>

#include <algorithm>
#include <stdexcept>

namespace golden {

namespace {

using namespace ejk;

std::string read_text_attribute(hid_t object, const char* name) {
  const hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  std::string text;
  if (H5Tis_variable_str(type) > 0) {
    char* p = nullptr;
    H5Aread(attribute, type, &p);
    text = p;
    H5free_memory(p);
  } else {
    text.resize(H5Tget_size(type));
    H5Aread(attribute, type, text.data());
    text.resize(std::min(text.find('\0'), text.size()));
  }
  H5Tclose(type);
  H5Aclose(attribute);
  return text;
}

DType dtype_in_file(hid_t dataset, hid_t type) {
  const std::size_t size = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_ENUM:
      return DType::boolean;
    case H5T_FLOAT:
      return size == 2 ? DType::float16 : size == 4 ? DType::float32 : DType::float64;
    case H5T_INTEGER: {
      if (H5Aexists(dataset, "dtype") > 0) return DType::bfloat16;
      const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
      const DType base = is_signed ? DType::int8 : DType::uint8;
      const int step = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
      return static_cast<DType>(static_cast<int>(base) + step);
    }
    default:
      throw std::runtime_error("golden file: unexpected type");
  }
}

Array read_dataset(hid_t group, const char* name) {
  const hid_t dataset = H5Dopen2(group, name, H5P_DEFAULT);
  const hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset);
  Shape shape(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space)));
  std::vector<hsize_t> lengths(shape.size());
  if (!shape.empty()) H5Sget_simple_extent_dims(space, lengths.data(), nullptr);
  for (std::size_t d = 0; d < shape.size(); ++d) shape[d] = static_cast<std::int64_t>(lengths[d]);
  Array array(dtype_in_file(dataset, type), shape);
  // Golden files are little-endian; reading as they are asks no conversion of the library.
  if (array.size() > 0 && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, array.data()) < 0)
    throw std::runtime_error(std::string("golden file: cannot read ") + name);
  H5Tclose(type);
  H5Sclose(space);
  H5Dclose(dataset);
  return array;
}

std::vector<std::string> names_in(hid_t group) {
  std::vector<std::string> names;
  H5Literate(
      group, H5_INDEX_NAME, H5_ITER_INC, nullptr,
      [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->emplace_back(name);
        return 0;
      },
      &names);
  return names;
}

// The text of a dataset that is one fixed-length string; nothing when it is none.
std::optional<std::string> read_text(hid_t group, const char* name) {
  const hid_t dataset = H5Dopen2(group, name, H5P_DEFAULT);
  const hid_t type = H5Dget_type(dataset);
  std::optional<std::string> text;
  if (H5Tget_class(type) == H5T_STRING) {
    text.emplace(H5Tget_size(type), '\0');
    H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text->data());
    text->resize(std::min(text->find('\0'), text->size()));
  }
  H5Tclose(type);
  H5Dclose(dataset);
  return text;
}

void read_group(hid_t parent, const char* name, std::map<std::string, Array>& arrays,
                std::map<std::string, std::string>& texts) {
  if (H5Lexists(parent, name, H5P_DEFAULT) <= 0) return;
  const hid_t group = H5Gopen2(parent, name, H5P_DEFAULT);
  for (const std::string& member : names_in(group)) {
    if (auto text = read_text(group, member.c_str()))
      texts.emplace(member, std::move(*text));
    else
      arrays.emplace(member, read_dataset(group, member.c_str()));
  }
  H5Gclose(group);
}

}  // namespace

std::string path_of(const std::string& function) {
  return std::string(EJK_TEST_DIR) + "/golden/" + function + ".h5";
}

std::map<std::string, ejk::Array> load_file(const std::string& path) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) throw std::runtime_error("cannot open " + path);
  std::map<std::string, Array> arrays;
  for (const std::string& name : names_in(file)) arrays.emplace(name, read_dataset(file, name.c_str()));
  H5Fclose(file);
  return arrays;
}

std::vector<Case> load(const std::string& function) {
  const std::string path = path_of(function);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) throw std::runtime_error("cannot open " + path);
  std::vector<Case> cases;
  for (const std::string& name : names_in(file)) {
    const hid_t group = H5Gopen2(file, name.c_str(), H5P_DEFAULT);
    Case c;
    c.name = name;
    c.params = nlohmann::json::parse(read_text_attribute(group, "params"));
    read_group(group, "in", c.in, c.texts);
    read_group(group, "out", c.out, c.texts);
    c.is_error = H5Aexists(group, "error_type") > 0;
    cases.push_back(std::move(c));
    H5Gclose(group);
  }
  H5Fclose(file);
  if (cases.empty()) throw std::runtime_error("no case in " + path);
  return cases;
}

}  // namespace golden
