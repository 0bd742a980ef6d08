# Readers of foreign data files.
foreach(target data_image data_idx data_packed data_spec data_tar)
  starling_fuzz(${target} ${CMAKE_CURRENT_LIST_DIR}/${target}.cc LIBRARIES starling_training_data)
endforeach()
