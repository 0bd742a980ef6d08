// The one copy of Asio's functions that are no templates (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>
