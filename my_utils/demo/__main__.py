from my_utils.demo.command import main

raise SystemExit(main())
