# Readers of foreign model files and of our own state files.
foreach(target training_safetensors training_state)
  starling_fuzz(${target} ${CMAKE_CURRENT_LIST_DIR}/${target}.cc LIBRARIES starling_training_core)
endforeach()
