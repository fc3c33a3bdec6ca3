#pragma once

// What ottava needs from an MPI library, as a C interface. libottava_mpi.so implements it (mpi_module.cpp,
// which includes nothing else of ottava) and is opened at run time. So the program starts where MPI is not
// installed, and one binary works with any MPI: only this small library is compiled against the machine's
// MPI, with nothing but `mpicxx`.

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OTTAVA_MPI_INTERFACE = 1 };

struct OttavaMpiWorld {
  int rank, size, largest_tag;
  int serialized; /* whether calls may come from any thread, one at a time */
};

struct OttavaMpiEnded {
  int index;    /* of the request */
  int error;    /* an MPI error code, or 0 */
  int too_long; /* the message was longer than the receive */
  int64_t bytes;
};

/* Functions that return int return 0 or an MPI error code. A request is whatever fits into a pointer; 0 is
 * none. */
struct OttavaMpi {
  int interface_version;
  int (*is_started)(void);
  /* MPI_Init_thread, and a communicator of all ranks whose errors are returned. */
  int (*start)(struct OttavaMpiWorld* world);
  int (*send)(const void* data, int bytes, int peer, int tag, void** request);
  int (*receive)(void* data, int bytes, int peer, int tag, void** request);
  /* MPI_Testsome. Requests that have ended become 0 and are listed in `ended`, which has room for `count`. */
  int (*test)(int count, void** requests, int* ended_count, struct OttavaMpiEnded* ended);
  void (*abandon_send)(void* request);
  void (*abandon_receive)(void* request);
  /* `text` has room for 512 bytes. */
  void (*error_text)(int code, char* text);
  void (*finish)(void);
};

const struct OttavaMpi* ottava_mpi(void);

#ifdef __cplusplus
}
#endif
