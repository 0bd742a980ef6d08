// The points at which a test can make an operation fail or a process die: every one there is.
//
// A name stands at one place in the code (tests/tidy checks that each is used, and once), and the
// compiler refuses one that is not here. See fault.h for how a point is armed.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace starling::fault {

// What can happen at a point, besides the death of the process.
enum class Kind : std::uint8_t {
  fails,  // the operation fails, as the operating system or a peer can make it
  dies,   // nothing there can fail
};

struct PointSpec {
  std::string_view name;
  Kind kind = Kind::fails;
};

inline constexpr std::array kPoints{
    // Files that training writes: parameters, momenta, state, final model.
    PointSpec{"file.create"},
    PointSpec{"file.write"},
    PointSpec{"file.flush"},
    PointSpec{"file.flushed", Kind::dies},
    PointSpec{"folder.flush"},
    PointSpec{"checkpoint.before_folder"},
    PointSpec{"checkpoint.before_optimizer", Kind::dies},
    PointSpec{"checkpoint.before_state", Kind::dies},
    PointSpec{"checkpoint.before_rename"},
    PointSpec{"checkpoint.after_rename", Kind::dies},
    PointSpec{"checkpoint.before_latest", Kind::dies},
    PointSpec{"checkpoint.before_remove", Kind::dies},
    PointSpec{"final.before_rename"},
    PointSpec{"final.before_certificate", Kind::dies},
    // Small files of the state folder: address, incarnation, settings, secrets, certificate, book.
    PointSpec{"state.create"},
    PointSpec{"state.write"},
    PointSpec{"state.before_rename"},
    PointSpec{"state.after_rename", Kind::dies},
    PointSpec{"settings.before_write", Kind::dies},
    PointSpec{"incarnation.before_write"},
    PointSpec{"key.write"},
    PointSpec{"key.written", Kind::dies},
    PointSpec{"secret.before_rename"},
    PointSpec{"events.write"},
    // Sockets.
    PointSpec{"control.reply", Kind::dies},
    PointSpec{"net.accept"},
    PointSpec{"net.dial"},
    PointSpec{"net.handshake_write"},
    PointSpec{"net.handshake_read"},
    PointSpec{"net.read"},
    PointSpec{"net.write"},
    PointSpec{"net.half_attachment", Kind::dies},
    // A joining node's model.
    PointSpec{"transfer.chunk_sent", Kind::dies},
    PointSpec{"transfer.chunk_taken", Kind::dies},
    PointSpec{"transfer.before_install", Kind::dies},
    // A step, or a walk over the model beside it, for which there is too little memory.
    PointSpec{"train.no_memory"},
    PointSpec{"lane.no_memory"},
    PointSpec{"build.no_memory"},
    PointSpec{"consensus.no_memory"},
    // The thread that writes a checkpoint, where the machine allows no more of them.
    PointSpec{"checkpoint.thread"},
    // A thread that reads images, where the machine allows no more of them.
    PointSpec{"loader.thread"},
    // A thread that a node cannot do without.
    PointSpec{"thread.refused"},
    // An exchange.
    PointSpec{"exchange.offered", Kind::dies},
    PointSpec{"exchange.applied", Kind::dies},
    // The final consensus, by what was just done.
    PointSpec{"consensus.set_closed", Kind::dies},
    PointSpec{"consensus.frozen", Kind::dies},
    PointSpec{"consensus.summed", Kind::dies},
    PointSpec{"consensus.divided", Kind::dies},
    PointSpec{"consensus.reduced", Kind::dies},
    PointSpec{"consensus.signed", Kind::dies},
    PointSpec{"consensus.certified", Kind::dies},
    PointSpec{"consensus.finished", Kind::dies},
};

[[nodiscard]] constexpr const PointSpec* find_point(std::string_view name) {
  for (const auto& point : kPoints)
    if (point.name == name) return &point;
  return nullptr;
}

consteval bool no_name_twice() {
  for (std::size_t i = 0; i < kPoints.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (kPoints[i].name == kPoints[k].name) return false;
  return true;
}
static_assert(no_name_twice());

}  // namespace starling::fault
