// Interpreter of the pickles in files of torch.save, which runs no code of theirs: a stack machine. Values
// are nodes of 12 bytes, their items indices in one pool; both grow by blocks, never by copying. Tensors are collected from the value on top of the stack, with limits on depth, on
// the number of paths and on their length, since lists may be shared or contain themselves.
// tests: tests/io/test_torch_file.cpp
#include "io/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>

#include "core/element_types.hpp"
#include "core/require.hpp"
#include "ejk/program/text.hpp"

namespace ejk::io {

namespace {

// Types of torch without arrays of ejk, then those with.
constexpr auto kTorchTypes = [] {
  constexpr std::size_t kOthers = 4;
  std::array<TorchType, kOthers + core::kElementTypes.size()> all{
      {{"float4_e2m1fn_x2", "", 1, std::nullopt, true},
       {"complex32", "", 4},
       {"complex64", "ComplexFloatStorage", 8},
       {"complex128", "ComplexDoubleStorage", 16}}};
  for (std::size_t i = kOthers; i < all.size(); ++i) {
    const core::ElementType& type = core::kElementTypes[i - kOthers];
    all[i] = {type.name, type.torch_storage, type.size, type.dtype};
  }
  return all;
}();

using Index = std::uint32_t;

struct Node {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,   // a, b: the low and the high half
    text,      // a, b: where it is in the pickle, its length
    other,     // what no tensor needs: a float, bytes, a set
    tuple,     // a, b: where its items are in the pool, their number
    list,      // a, b: its first and last segment, from 1 on; 0: empty
    dict,      // the same; items: keys and values in turn
    function,  // a: a Function
    type,      // a: an index of kTorchTypes; of the element type or of its storages
    storage,   // a: the text of its key; b: an index of kTorchTypes from 1 on, or 0 if it is untyped
    tensor,    // a: a tuple of arguments; b: as of a storage, 0: the storage's
    found,     // a tensor that has a path; a: its index
    global,    // another function or class; a, b: the texts of its module and name
    object,    // what such a one returned; a: the global; b: its last part, from 1 on
  };
  Kind kind = Kind::none;
  std::uint32_t a = 0, b = 0;
};
using NodeKind = Node::Kind;

enum class Function : std::uint8_t {
  rebuild_tensor,
  rebuild_tensor_v2,
  rebuild_tensor_v3,
  rebuild_parameter,
  ordered_dict,
  size,
  untyped_storage,
};
struct KnownFunction {
  std::string_view module, name;
  Function function;
};
constexpr std::array<KnownFunction, 8> kFunctions{{
    {"torch._utils", "_rebuild_tensor", Function::rebuild_tensor},
    {"torch._utils", "_rebuild_tensor_v2", Function::rebuild_tensor_v2},
    {"torch._utils", "_rebuild_tensor_v3", Function::rebuild_tensor_v3},
    {"torch._utils", "_rebuild_parameter", Function::rebuild_parameter},
    {"torch._utils", "_rebuild_parameter_with_state", Function::rebuild_parameter},
    {"collections", "OrderedDict", Function::ordered_dict},
    {"torch", "Size", Function::size},
    {"torch.storage", "UntypedStorage", Function::untyped_storage},
}};

class Unpickler {
 public:
  Unpickler(std::string_view pickle, std::int64_t max_memory) : pickle_(pickle), max_memory_(max_memory) {
    if (pickle.size() > UINT32_MAX) throw core::invalid("the pickle has more than 4 GiB");
    nodes_.resize(kFirstNode);
    nodes_[kTrue].kind = nodes_[kFalse].kind = NodeKind::boolean;
    nodes_[kEmptyTuple].kind = NodeKind::tuple;
    nodes_[kOther].kind = NodeKind::other;
    for (std::uint32_t i = 0; i < kSmallIntegers; ++i) nodes_[kFirstInteger + i] = {NodeKind::integer, i, 0};
  }

  PickleContents run() {
    constexpr std::uint64_t kBetweenChecks = 1024;
    for (std::uint64_t steps = 1; step(); ++steps)
      if (steps % kBetweenChecks == 0) check_memory();
    check_memory();
    if (stack_.size() != 1 || !marks_.empty()) fail("it does not end with one value");
    // A path takes at least a byte of the pickle, but for lists that are in several others.
    constexpr std::size_t kPerByte = 4, kNameBytesPerByte = 16, kLeastNameBytes = 1 << 16;
    visits_left_ = kPerByte * pickle_.size() + kPerByte;
    name_bytes_left_ = kNameBytesPerByte * pickle_.size() + kLeastNameBytes;
    std::string path;
    collect(stack_[0], path, true, 0);
    count_tensors_in_objects();
    sort_paths();
    return std::move(contents_);
  }

 private:
  // Immutable values that take one or two bytes of a pickle are one node each.
  static constexpr Index kNone = 0, kTrue = 1, kFalse = 2, kEmptyTuple = 3, kOther = 4, kFirstInteger = 5,
                         kSmallIntegers = 256, kFirstNode = kFirstInteger + kSmallIntegers,
                         kUnset = UINT32_MAX;
  static constexpr int kDeepest = 100;
  static constexpr std::size_t kMostAxes = 64;  // torch's limit

  [[noreturn]] void fail(std::string_view why) const {
    throw core::invalid("the pickle is damaged at byte {}: {}", opcode_at_, why);
  }

  // --- the bytes

  std::string_view take(std::uint64_t n) {
    if (n > pickle_.size() - at_) fail("it ends within a value");
    const std::string_view bytes = pickle_.substr(at_, static_cast<std::size_t>(n));
    at_ += static_cast<std::size_t>(n);
    return bytes;
  }
  std::uint64_t number(std::size_t width) {
    const std::string_view bytes = take(width);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::string_view line() {
    const std::size_t end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) fail("it ends within a name");
    const std::string_view text = pickle_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  // --- the stack and the values

  void check_memory() const {
    const std::size_t bytes = pickle_.size() + nodes_.size() * sizeof(Node) +
                              (pool_.size() + stack_.size() + marks_.size() + memo_.size()) * sizeof(Index) +
                              contents_.named.size() * (sizeof(NamedTensor) + sizeof(Index)) + path_bytes_ +
                              contents_.tensors.size() * sizeof(PickledTensor);
    if (max_memory_ > 0 && bytes > static_cast<std::uint64_t>(max_memory_))
      throw Error(Error::Kind::budget,
                  fmt::format("the pickle of {} takes more than the {} of memory allowed",
                              format_bytes(std::ssize(pickle_)), format_bytes(max_memory_)));
  }

  Index add(const Node& node) {
    nodes_.push_back(node);
    return static_cast<Index>(nodes_.size() - 1);
  }
  void push(Index value) { stack_.push_back(value); }
  void push_new(NodeKind kind, std::uint32_t a = 0, std::uint32_t b = 0) { push(add({kind, a, b})); }
  void push_integer(std::int64_t value) {
    if (value >= 0 && value < kSmallIntegers) return push(kFirstInteger + static_cast<Index>(value));
    const auto bits = static_cast<std::uint64_t>(value);
    push_new(NodeKind::integer, static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32U));
  }
  std::int64_t integer(Index value) const {
    return static_cast<std::int64_t>(std::uint64_t{nodes_[value].b} << 32U | nodes_[value].a);
  }
  Index add_text(std::string_view text) {
    return add({NodeKind::text, static_cast<std::uint32_t>(text.data() - pickle_.data()),
                static_cast<std::uint32_t>(text.size())});
  }
  std::string_view text(Index value) const { return pickle_.substr(nodes_[value].a, nodes_[value].b); }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Index pop() {
    if (stack_.size() <= floor()) fail("a value is missing");
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Index top() const {
    if (stack_.size() <= floor()) fail("a value is missing");
    return stack_.back();
  }
  // Removes the last mark; returns where the values above it begin.
  std::size_t take_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const std::size_t begin = marks_.back();
    marks_.pop_back();
    return begin;
  }
  void pop_marked() { stack_.resize(take_mark()); }
  // The values of the stack from `begin` on become a tuple.
  void push_tuple(std::size_t begin) {
    if (begin == stack_.size()) return push(kEmptyTuple);
    const auto at = static_cast<std::uint32_t>(pool_.size());
    const auto n = static_cast<std::uint32_t>(stack_.size() - begin);
    pool_.insert(pool_.end(), stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin);
    push_new(NodeKind::tuple, at, n);
  }
  void push_last_as_tuple(std::size_t n) {
    if (stack_.size() - floor() < n) fail("a value is missing");
    push_tuple(stack_.size() - n);
  }
  // The values from `begin` on become items of a list or dict, in a segment of the pool: the next segment,
  // from 1 on, the number of items, the items. Parts of an object are linked singly.
  void move_to(Index to, std::size_t begin) {
    Node& node = nodes_[to];
    const auto n = static_cast<std::uint32_t>(stack_.size() - begin);
    const auto end = static_cast<std::uint32_t>(pool_.size());
    if (node.kind == NodeKind::object) {
      for (std::size_t i = begin; i < stack_.size(); ++i) add_part(to, stack_[i]);
    } else if (n > 0) {
      if (node.kind == NodeKind::dict && n % 2 != 0) fail("a key has no value");
      if (node.b != 0 && node.b + 1 + pool_[node.b] == end) {
        pool_[node.b] += n;
      } else {
        pool_.push_back(0);
        pool_.push_back(n);
        (node.b == 0 ? node.a : pool_[node.b - 1]) = end + 1;
        node.b = end + 1;
      }
      pool_.insert(pool_.end(), stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    }
    stack_.resize(begin);
  }
  void add_part(Index object, Index part) {
    pool_.push_back(nodes_[object].b);
    pool_.push_back(part);
    nodes_[object].b = static_cast<std::uint32_t>(pool_.size()) - 1;
  }
  // The values from `begin` on go into what is below them.
  void append(std::size_t begin, NodeKind kind, std::string_view what) {
    const bool has_target = begin > floor();
    const NodeKind found = has_target ? nodes_[stack_[begin - 1]].kind : NodeKind::none;
    if (found != kind && found != NodeKind::object) fail(fmt::format("there is no {}", what));
    move_to(stack_[begin - 1], begin);
  }
  // Of the last n values.
  void append_last(std::size_t n, NodeKind kind, std::string_view what) {
    if (stack_.size() - floor() < n) fail("a value is missing");
    append(stack_.size() - n, kind, what);
  }
  // f(number, item) for each item of a tuple, list or dict.
  template <class F>
  void for_each_item(const Node& node, F&& f) const {
    if (node.kind == NodeKind::tuple) {
      for (std::uint32_t i = 0; i < node.b; ++i) f(i, pool_[node.a + i]);
      return;
    }
    std::uint32_t number = 0;
    for (std::uint32_t segment = node.a; segment != 0; segment = pool_[segment - 1])
      for (std::uint32_t i = 0; i < pool_[segment]; ++i) f(number++, pool_[segment + 1 + i]);
  }
  Index item(Index tuple, std::size_t i) const { return pool_[nodes_[tuple].a + i]; }

  // --- opcodes

  // False at the end of the pickle.
  bool step() {
    opcode_at_ = at_;
    const char opcode = take(1)[0];
    switch (static_cast<unsigned char>(opcode)) {
      case '.':
        return false;
      case 0x80: {  // the protocol
        constexpr std::uint64_t kNewest = 5;
        if (const std::uint64_t version = number(1); version > kNewest)
          throw core::invalid("the pickle has protocol {}, and {} is the newest known", version, kNewest);
        return true;
      }
      case 0x95:  // the length of a frame, for readers of streams
        take(8);
        return true;
      case '(':
        marks_.push_back(static_cast<std::uint32_t>(stack_.size()));
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_marked();
        return true;
      case '2': {
        const Index value = pop();
        push(value), push(value);
        return true;
      }
      case 'N':
        return push(kNone), true;
      case 0x88:
        return push(kTrue), true;
      case 0x89:
        return push(kFalse), true;
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1))), true;
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2))), true;
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4))), true;
      case 0x8a:
        return push_long(number(1)), true;
      case 0x8b:
        return push_long(number(4)), true;
      case 'G':
        take(8);
        return push(kOther), true;
      case 'X':
        return push(add_text(take(number(4)))), true;
      case 0x8c:
        return push(add_text(take(number(1)))), true;
      case 0x8d:
        return push(add_text(take(number(8)))), true;
      case 'U':  // strings of Python 2
        return push(add_text(take(number(1)))), true;
      case 'T':
        return push(add_text(take(number(4)))), true;
      case 'B':
        take(number(4));
        return push(kOther), true;
      case 'C':
        take(number(1));
        return push(kOther), true;
      case 0x8e:
      case 0x96:
        take(number(8));
        return push(kOther), true;
      case ')':
        return push(kEmptyTuple), true;
      case 0x85:
      case 0x86:
      case 0x87:
        return push_last_as_tuple(static_cast<unsigned char>(opcode) - 0x84U), true;
      case 't':
        return push_tuple(take_mark()), true;
      case ']':
        return push_new(NodeKind::list), true;
      case 'l':
        return push_filled(NodeKind::list), true;
      case 'a':
        return append_last(1, NodeKind::list, "list to append to"), true;
      case 'e':
        return append(take_mark(), NodeKind::list, "list to append to"), true;
      case '}':
        return push_new(NodeKind::dict), true;
      case 'd':
        return push_filled(NodeKind::dict), true;
      case 's':
        return append_last(2, NodeKind::dict, "dict to put an item in"), true;
      case 'u':
        return append(take_mark(), NodeKind::dict, "dict to put items in"), true;
      case 0x8f:  // an empty set
        return push(kOther), true;
      case 0x90:  // items of a set
        pop_marked();
        if (nodes_[top()].kind != NodeKind::other) fail("there is no set to add to");
        return true;
      case 0x91:  // a frozen set
        pop_marked();
        return push(kOther), true;
      case 'q':
        return remember(number(1)), true;
      case 'r':
        return remember(number(4)), true;
      case 0x94:
        return remember(remembered_), true;
      case 'h':
        return recall(number(1)), true;
      case 'j':
        return recall(number(4)), true;
      case 'c': {
        const Index module = add_text(line());
        return push_global(module, add_text(line())), true;
      }
      case 0x93: {
        const Index name = pop(), module = pop();
        if (nodes_[name].kind != NodeKind::text || nodes_[module].kind != NodeKind::text)
          fail("the name of a function is no text");
        return push_global(module, name), true;
      }
      case 'Q':
        return push_storage(pop()), true;
      case 'R': {
        const Index arguments = pop(), function = pop();
        return call(function, arguments), true;
      }
      case 0x81: {  // an object of a class
        const Index arguments = pop(), of = pop();
        return call(of, arguments), true;
      }
      case 0x92: {  // the same, with named arguments
        const Index named = pop(), arguments = pop(), of = pop();
        call(of, arguments);
        if (nodes_[top()].kind == NodeKind::object) add_part(top(), named);
        return true;
      }
      case 'b':
        return set_attributes(pop()), true;
      default:
        throw core::invalid("the pickle has the opcode 0x{:02x} at byte {}, which no tensor needs",
                            static_cast<unsigned char>(opcode), opcode_at_);
    }
  }

  // Two's complement of any width. What exceeds 64 bits is no number of a tensor.
  void push_long(std::uint64_t width) {
    const std::string_view bytes = take(width);
    if (bytes.size() > sizeof(std::int64_t)) return push(kOther);
    std::uint64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    push_integer(static_cast<std::int64_t>(value));
  }

  // A list or dict of what is above the last mark.
  void push_filled(NodeKind kind) {
    const std::size_t begin = take_mark();
    const Index made = add({kind});
    move_to(made, begin);
    push(made);
  }

  // Of a dict, as modules have them; tensors are not among them. Those of an object are its parts.
  void set_attributes(Index attributes) {
    const Index to = top();
    if (nodes_[to].kind == NodeKind::object) return add_part(to, attributes);
    if (nodes_[to].kind != NodeKind::dict) fail("there is no dict to set attributes of");
  }

  // Picklers number slots from 0 on.
  void remember(std::uint64_t slot) {
    const Index value = top();
    if (slot >= pickle_.size()) fail(fmt::format("it remembers a value as {}", slot));
    const auto at = static_cast<std::size_t>(slot);
    if (at >= memo_.size()) memo_.resize(at + 1, kUnset);
    if (memo_[at] == kUnset) ++remembered_;
    memo_[at] = value;
  }
  void recall(std::uint64_t slot) {
    if (slot >= memo_.size() || memo_[static_cast<std::size_t>(slot)] == kUnset)
      fail(fmt::format("nothing was remembered as {}", slot));
    push(memo_[static_cast<std::size_t>(slot)]);
  }

  void push_global(Index module_text, Index name_text) {
    const std::string_view module = text(module_text), name = text(name_text);
    for (const KnownFunction& known : kFunctions)
      if (known.module == module && known.name == name)
        return push_new(NodeKind::function, static_cast<std::uint32_t>(known.function));
    for (std::uint32_t i = 0; module == "torch" && i < kTorchTypes.size(); ++i)
      if (name == kTorchTypes[i].name || (name == kTorchTypes[i].storage && !name.empty()))
        return push_new(NodeKind::type, i);
    if ((module == "torch._utils" || module == "torch._tensor") && name.starts_with("_rebuild"))
      throw Error(Error::Kind::input,
                  fmt::format("the pickle uses {}.{}: a tensor of a kind that is not read",
                              printable(module, 80), printable(name, 80)))
          .hint("save x.dequantize(), x.to_dense() or x.detach().clone() in its place");
    push_new(NodeKind::global, module_text, name_text);
  }

  // ("storage", type, key, device, elements)
  void push_storage(Index id) {
    if (nodes_[id].kind != NodeKind::tuple || nodes_[id].b < 5 || !is_text(item(id, 0), "storage") ||
        nodes_[item(id, 2)].kind != NodeKind::text)
      fail("a storage has no type and key");
    const Index type = item(id, 1);
    if (nodes_[type].kind != NodeKind::type && !is_function(type, Function::untyped_storage))
      fail("a storage has no type and key");
    push_new(NodeKind::storage, item(id, 2), nodes_[type].kind == NodeKind::type ? nodes_[type].a + 1 : 0);
  }

  bool is_text(Index value, std::string_view expected) const {
    return nodes_[value].kind == NodeKind::text && text(value) == expected;
  }
  bool is_function(Index value, Function function) const {
    return nodes_[value].kind == NodeKind::function &&
           nodes_[value].a == static_cast<std::uint32_t>(function);
  }

  void call(Index function, Index arguments) {
    const NodeKind called = nodes_[function].kind;
    if (called == NodeKind::global || called == NodeKind::object) {
      push_new(NodeKind::object, called == NodeKind::global ? function : nodes_[function].a);
      return add_part(top(), arguments);
    }
    if (called != NodeKind::function || nodes_[arguments].kind != NodeKind::tuple)
      fail("what is called is no function with arguments");
    const std::size_t given = nodes_[arguments].b;
    switch (static_cast<Function>(nodes_[function].a)) {
      case Function::rebuild_tensor:
      case Function::rebuild_tensor_v2:
        return push_tensor(arguments, 0);
      case Function::rebuild_tensor_v3: {
        constexpr std::size_t kType = 6;
        if (given <= kType || nodes_[item(arguments, kType)].kind != NodeKind::type)
          fail("a tensor has no dtype");
        return push_tensor(arguments, nodes_[item(arguments, kType)].a + 1);
      }
      case Function::rebuild_parameter:
        if (given == 0 || nodes_[item(arguments, 0)].kind != NodeKind::tensor)
          fail("a parameter has no tensor");
        return push(item(arguments, 0));
      case Function::ordered_dict:
        if (given != 0) fail("an OrderedDict is made of arguments");
        return push_new(NodeKind::dict);
      case Function::size:
        if (given != 1) fail("a size has no lengths");
        return push(item(arguments, 0));
      case Function::untyped_storage:
        break;
    }
    fail("a class is called that no tensor is rebuilt by");
  }

  // (storage, offset, shape, strides, ...); the type from 1 on, 0: that of the storage. Arguments are kept,
  // which are smaller than the tensor, and several tensors may have the same.
  void push_tensor(Index arguments, std::uint32_t type) {
    (void)tensor_of({NodeKind::tensor, arguments, type});
    push_new(NodeKind::tensor, arguments, type);
  }
  PickledTensor tensor_of(const Node& node) const {
    if (nodes_[node.a].b < 4 || nodes_[item(node.a, 0)].kind != NodeKind::storage)
      fail("a tensor has no storage");
    const Node& storage = nodes_[item(node.a, 0)];
    const std::uint32_t type = node.b != 0 ? node.b : storage.b;
    if (type == 0) fail("a tensor has no dtype");
    PickledTensor tensor;
    tensor.type = &kTorchTypes[type - 1];
    tensor.storage = text(storage.a);
    if (nodes_[item(node.a, 1)].kind != NodeKind::integer) fail("a tensor's offset is no number");
    tensor.offset = integer(item(node.a, 1));
    tensor.shape = numbers_of(item(node.a, 2));
    tensor.strides = numbers_of(item(node.a, 3));
    if (tensor.shape.size() != tensor.strides.size())
      fail(fmt::format("a tensor has {} axes and {} strides", tensor.shape.size(), tensor.strides.size()));
    (void)element_count(tensor.shape);  // an Error where it exceeds 64 bits
    return tensor;
  }

  Shape numbers_of(Index value) const {
    const Node& list = nodes_[value];
    if (list.kind != NodeKind::tuple && list.kind != NodeKind::list)
      fail("a tensor's shape or strides are no tuple");
    Shape numbers;
    for_each_item(list, [&](std::uint32_t, Index item) {
      if (numbers.size() == kMostAxes) fail(fmt::format("a tensor has more than {} axes", kMostAxes));
      if (nodes_[item].kind != NodeKind::integer || integer(item) < 0)
        fail("a tensor's shape or strides have an entry that is no number from 0 on");
      numbers.push_back(integer(item));
    });
    return numbers;
  }

  // --- the paths

  void charge(std::size_t name_bytes) {
    if (name_bytes > name_bytes_left_) throw core::invalid("the paths of tensors are too long");
    name_bytes_left_ -= name_bytes;
  }

  void found_tensor(Node& node, const std::string& path) {
    // A key and a reference to a tensor take as many bytes, but for a few short keys.
    constexpr std::size_t kBytesOfPath = 16, kFew = 4096;
    if (contents_.named.size() >= pickle_.size() / kBytesOfPath + kFew)
      throw core::invalid("too many paths lead to the same tensors");
    charge(path.size());
    if (node.kind == NodeKind::tensor) {
      contents_.tensors.push_back(tensor_of(node));
      node = {NodeKind::found, static_cast<std::uint32_t>(contents_.tensors.size() - 1), 0};
    }
    contents_.named.push_back({path, node.a});
    path_bytes_ += path.size();
    constexpr std::size_t kBetweenChecks = 1024;
    if (contents_.named.size() % kBetweenChecks == 0) check_memory();
  }

  void found_object(Index value, const std::string& path) {
    const Node& node = nodes_[value];
    const Node& global = nodes_[node.kind == NodeKind::object ? node.a : value];
    constexpr std::size_t kMostClasses = 16;
    std::string name = name_of_class(text(global.a), text(global.b));
    auto& objects = contents_.objects;
    if (objects.size() == kMostClasses) name = "others";
    auto found = std::find_if(objects.begin(), objects.end(),
                              [&](const PickledObjects& object) { return object.name == name; });
    if (found == objects.end()) found = objects.insert(found, {std::move(name), 0, path});
    ++found->count;
    if (node.kind == NodeKind::object) objects_.push_back(value);
  }

  static std::string name_of_class(std::string_view module, std::string_view name) {
    if (module == "numpy.core.multiarray" || module == "numpy._core.multiarray") {
      if (name == "scalar") return "NumPy scalar";
      if (name == "_reconstruct") return "NumPy array";
    }
    return fmt::format("{}.{}", printable(module, 80), printable(name, 80));
  }

  // `is_named`: no key on the path is of another type than text and integers.
  void collect(Index value, std::string& path, bool is_named, int depth) {
    if (visits_left_-- == 0)
      throw core::invalid("lists and dicts of the pickle contain each other too often");
    Node& node = nodes_[value];
    if (node.kind == NodeKind::tensor || node.kind == NodeKind::found) {
      if (!is_named) throw core::invalid("a tensor is under a key that is neither a text nor an integer");
      return found_tensor(node, path);
    }
    if (node.kind == NodeKind::object || node.kind == NodeKind::global) return found_object(value, path);
    const bool is_dict = node.kind == NodeKind::dict;
    if (!is_dict && node.kind != NodeKind::list && node.kind != NodeKind::tuple) return;
    if (depth == kDeepest)
      throw core::invalid("the pickle has more than {} lists and dicts inside one another", kDeepest);
    const std::size_t length = path.size();
    Index key = 0;
    for_each_item(node, [&](std::uint32_t i, Index item) {
      if (is_dict && i % 2 == 0) {
        key = item;
        return;
      }
      const bool has_name = add_to_path(path, is_dict, key, i);
      collect(item, path, is_named && has_name, depth + 1);
      path.resize(length);
    });
  }

  // False for a key that is neither a text nor an integer.
  bool add_to_path(std::string& path, bool is_dict, Index key, std::uint32_t number) {
    if (!is_dict) {
      path += fmt::format("[{}]", number);
    } else if (nodes_[key].kind == NodeKind::text) {
      if (!path.empty()) path += '.';
      charge(text(key).size());
      path += text(key);
    } else if (nodes_[key].kind == NodeKind::integer) {
      path += fmt::format("[{}]", integer(key));
    } else {
      return false;
    }
    return true;
  }

  // Each value once: objects refer to each other in circles.
  void count_tensors_in_objects() {
    if (objects_.empty()) return;
    std::vector<bool> seen(nodes_.size());
    std::deque<Index> rest = std::move(objects_);
    const auto visit = [&](Index value) {
      if (!seen[value]) rest.push_back(value);
      seen[value] = true;
    };
    while (!rest.empty()) {
      const Node node = nodes_[rest.front()];
      rest.pop_front();
      if (node.kind == NodeKind::tensor) ++contents_.tensors_in_objects;
      if (node.kind == NodeKind::object)
        for (std::uint32_t part = node.b; part != 0; part = pool_[part - 1]) visit(pool_[part]);
      if (node.kind == NodeKind::list || node.kind == NodeKind::dict || node.kind == NodeKind::tuple)
        for_each_item(node, [&](std::uint32_t, Index item) { visit(item); });
    }
  }

  void sort_paths() {
    const auto& named = contents_.named;
    auto& order = contents_.by_path;
    order.resize(named.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return named[a].path < named[b].path; });
    for (std::size_t i = 1; i < order.size(); ++i)
      if (named[order[i]].path == named[order[i - 1]].path)
        throw core::invalid("two tensors have the path '{}'", printable(named[order[i]].path));
  }

  std::string_view pickle_;
  std::int64_t max_memory_;
  std::size_t at_ = 0, opcode_at_ = 0;
  std::deque<Node> nodes_;
  std::deque<Index> pool_, stack_, memo_;
  std::deque<std::uint32_t> marks_;
  std::uint64_t remembered_ = 0;
  std::deque<Index> objects_;  // with a path
  PickleContents contents_;
  std::size_t visits_left_ = 0, name_bytes_left_ = 0, path_bytes_ = 0;
};

}  // namespace

const NamedTensor* PickleContents::find(std::string_view path) const {
  const auto found =
      std::lower_bound(by_path.begin(), by_path.end(), path,
                       [&](std::uint32_t i, std::string_view wanted) { return named[i].path < wanted; });
  return found == by_path.end() || named[*found].path != path ? nullptr : &named[*found];
}

PickleContents tensors_in_pickle(std::string_view pickle, std::int64_t max_memory) {
  return Unpickler(pickle, max_memory).run();
}

}  // namespace ejk::io
